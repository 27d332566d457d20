"""Kubernetes' own admission plugins for policies, in a program (programs/admit.go) that is built of Debian's packages.

No API server can be had as a package. Debian's library for API servers has the plugins that kube-apiserver calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.debian_packages import UnavailableError, kept, unpack_with_dependencies

_SOURCE = Path(__file__).parent / "programs" / "admit.go"
_PACKAGES = ("golang-k8s-apiserver-dev", "golang-go")


def admit() -> Path:
    """The program, which takes some minutes to build. Raises UnavailableError."""
    name = f"admit-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}"
    return kept(name, _build) / "admit"


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        packages, cache = Path(work, "packages"), Path(work, "cache")
        packages.mkdir()
        unpack_with_dependencies(packages, _PACKAGES, "sid")
        root = next((packages / "usr" / "lib").glob("go-1.*"))
        go = {"GOROOT": root, "GOPATH": packages / "usr/share/gocode", "GOCACHE": cache, "GO111MODULE": "off"}
        plain = {"GOFLAGS": "", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        done = subprocess.run(
            [root / "bin" / "go", "build", "-ldflags=-s -w", "-o", folder / "admit", _SOURCE],
            env={**os.environ, **{name: str(value) for name, value in go.items()}, **plain},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise UnavailableError(done.stderr.strip().splitlines()[-1])


def answer(policies: Sequence[Path], resource: str, operation: str = "CREATE", **asked: Any) -> dict[str, Any]:
    """Ask for the admission of a request: {"object": ...} as it is admitted, or {"error": ...}."""
    request = json.dumps({"resource": resource, "operation": operation, **asked})
    done = subprocess.run([admit(), *policies], input=request, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
