"""Real programs on a real GPU, in a container and outside, under the limits of `vgpurun`.

The machine has PyTorch (and CuPy, JAX) but no image with it: so the image is empty, and the host's own folders are
mounted into it, read-only.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import CHECKOUT

PROGRAMS = Path(__file__).parent / "programs"
IMAGE = "vgpurun-test/host:1"
GLIBC_IMAGE = "vgpurun-test/glibc:1"
HOST_FOLDERS = ("bin", "lib", "lib64", "opt", "sbin", "usr")
TIMEOUT_S = 180
MAY_UNMOUNT = (
    "--cap-add",
    "SYS_ADMIN",
    "--security-opt",
    "apparmor=unconfined",
    "--security-opt",
    "seccomp=unconfined",
)


def vgpurun(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line of this checkout."""
    return subprocess.run(
        [sys.executable, "-m", "vgpurun", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@dataclass(frozen=True)
class Local:
    """Programs run by `vgpurun local`, with an interpreter that has PyTorch."""

    python: str

    def run(
        self, options: Sequence[str], command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return vgpurun(["local", *options, "--", *command], environment)

    def program(self, name: str) -> list[str]:
        return [self.python, str(PROGRAMS / name)]


@dataclass(frozen=True)
class Container:
    """Programs run by `vgpurun run`, in a container that sees the host's folders."""

    python: str
    etc: Path

    def run(
        self, options: Sequence[str], command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return vgpurun(self._arguments(options, command, environment or {}))

    def start(self, options: Sequence[str], command: Sequence[str]) -> subprocess.Popen[str]:
        """The same in the background."""
        words = [sys.executable, "-m", "vgpurun", *self._arguments(options, command, {})]
        return subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)

    def _arguments(self, options: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        folders = [Path("/") / name for name in HOST_FOLDERS if (Path("/") / name).exists()]
        mounts = [f"-v{folder}:{folder}:ro" for folder in folders]
        mounts += [f"-v{self.etc}:/etc:ro", f"-v{PROGRAMS}:/programs:ro"]
        variables = [f"-e{name}={value}" for name, value in environment.items()]
        settings = ["-eHOME=/tmp", "-ePATH=" + os.environ["PATH"]]
        return ["--rm", "--network=none", *mounts, *settings, *variables, *options, IMAGE, *command]

    def program(self, name: str) -> list[str]:
        return [self.python, f"/programs/{name}"]


Runner = Local | Container


def answer(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the last line that a program printed, which is JSON."""
    assert result.returncode == 0 and result.stdout, f"exit code {result.returncode}: {result.stdout}{result.stderr}"
    parsed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return parsed


def c_library() -> bytes:
    """This machine's glibc at the paths that it has, and an empty /tmp, as a tar file."""
    listed = subprocess.run(["ldd", "/usr/bin/env"], capture_output=True, text=True, check=True).stdout
    folder = next(Path(word).parent for word in listed.split() if word.startswith("/") and "libc.so.6" in word)
    loader = next(word for word in listed.split() if word.startswith("/") and "ld-linux" in word)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"):
            place = f"{folder}/{name}".lstrip("/")
            tar.add((folder / name).resolve(), arcname=place if place.startswith("usr/") else f"usr/{place}")
        tar.add(Path(loader).resolve(), arcname=f"usr{loader}")
        folder_for_all = tarfile.TarInfo("tmp")
        folder_for_all.type, folder_for_all.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder_for_all)
        for link in ("lib", "lib64"):
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(member)
    return archive.getvalue()
