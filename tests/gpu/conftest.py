"""Real programs on a real GPU, in a container and outside, under the limits of `vgpurun`.

The machine has PyTorch (and CuPy, JAX) but no image with it: so the image is empty, and the host's own folders are
mounted into it, read-only.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import CHECKOUT, is_set, unavailable

PROGRAMS = Path(__file__).parent / "programs"
IMAGE = "vgpurun-test/host:1"
HOST_FOLDERS = ("bin", "lib", "lib64", "opt", "sbin", "usr")
TIMEOUT_S = 180


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
    """Programs run by `vgpurun local`."""

    def run(
        self, options: Sequence[str], command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return vgpurun(["local", *options, "--", *command], environment)

    def program(self, name: str) -> list[str]:
        return [sys.executable, str(PROGRAMS / name)]


@dataclass(frozen=True)
class Container:
    """Programs run by `vgpurun run`, in a container that sees the host's folders."""

    etc: Path

    def run(
        self, options: Sequence[str], command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        folders = [Path("/") / name for name in HOST_FOLDERS if (Path("/") / name).exists()]
        mounts = [f"-v{folder}:{folder}:ro" for folder in folders]
        mounts += [f"-v{self.etc}:/etc:ro", f"-v{PROGRAMS}:/programs:ro"]
        variables = [f"-e{name}={value}" for name, value in (environment or {}).items()]
        settings = ["-eHOME=/tmp", "-ePATH=" + os.environ["PATH"]]
        return vgpurun(["--rm", "--network=none", *mounts, *settings, *variables, *options, IMAGE, *command])

    def program(self, name: str) -> list[str]:
        return [sys.executable, f"/programs/{name}"]


Runner = Local | Container


def answer(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program printed: its last line, JSON."""
    assert result.returncode == 0, result.stdout + result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return parsed


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip all of this tier on a machine without a GPU and PyTorch; fail with REQUIRE_GPU=1."""
    required = is_set("REQUIRE_GPU")
    if shutil.which("nvidia-smi") is None or not Path("/dev/nvidiactl").exists():
        unavailable("this machine has no NVIDIA GPU", required=required)
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode:
        unavailable("PyTorch is not installed", required=required)


@pytest.fixture(scope="session")
def host_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An image that is empty but for mount points; gives an /etc that has a place for ld.so.preload."""
    import docker

    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException:
        unavailable("no Docker Engine answers", required=is_set("REQUIRE_ENGINE"))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in (*HOST_FOLDERS, "dev", "etc", "proc", "programs", "sys", "tmp", "var"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
    repository, tag = IMAGE.split(":")
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag)
    etc = tmp_path_factory.mktemp("etc") / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("shadow*"))
    (etc / "ld.so.preload").touch()
    yield etc
    client.images.remove(IMAGE, force=True)


@pytest.fixture(params=["local", "container"])
def runner(request: pytest.FixtureRequest) -> Runner:
    """Both ways of running a program under limits."""
    if request.param == "local":
        return Local()
    return Container(request.getfixturevalue("host_image"))
