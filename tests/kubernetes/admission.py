"""Kubernetes' own admission plugins for policies, in a program (programs/admit.go).

No API server can be had as a package. Debian's library for API servers has the plugins that kube-apiserver calls:

    PYTHONPATH=tests python tests/kubernetes/admission.py FILE    builds the program of it; ADMIT=FILE lets tests use it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.debian_packages import unpack_with_dependencies

_SOURCE = Path(__file__).parent / "programs" / "admit.go"
_PACKAGES = ("golang-k8s-apiserver-dev", "golang-go")
ADMIT = os.environ.get("ADMIT", "")
needs_admit = pytest.mark.skipif(
    not ADMIT, reason="ADMIT names no program of Kubernetes' own plugins (tests/kubernetes/admission.py builds one)"
)


def build(program: Path) -> None:
    """Build it, which takes some minutes and 4 GB. Raises UnavailableError, and CalledProcessError."""
    with tempfile.TemporaryDirectory() as work:
        packages, cache = Path(work, "packages"), Path(work, "cache")
        packages.mkdir()
        unpack_with_dependencies(packages, _PACKAGES, "sid")
        root = next((packages / "usr" / "lib").glob("go-1.*"))
        go = {"GOROOT": root, "GOPATH": packages / "usr/share/gocode", "GOCACHE": cache, "GO111MODULE": "off"}
        plain = {"GOFLAGS": "", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        subprocess.run(
            [root / "bin" / "go", "build", "-ldflags=-s -w", "-o", program.absolute(), _SOURCE],
            env={**os.environ, **{name: str(value) for name, value in go.items()}, **plain},
            check=True,
        )


def answer(policies: Sequence[Path], resource: str, operation: str = "CREATE", **asked: Any) -> dict[str, Any]:
    """Ask for the admission of a request: {"object": ...} as it is admitted, or {"error": ...}."""
    request = json.dumps({"resource": resource, "operation": operation, **asked})
    done = subprocess.run([ADMIT, *policies], input=request, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    build(Path(sys.argv[1]))
