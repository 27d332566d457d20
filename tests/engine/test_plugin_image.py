"""The image of the DaemonSets: it builds from dockerfiles/, starts, and has what a node needs.

Debian stands in for the base images, and a folder of wheels for PyPI.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import docker
import pytest
from packaging.requirements import Requirement

import images
from support.debian_packages import UnavailableError, kept
from support.python_packages import copy_checkout

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

DEBIANS_PYTHON = "3.11"
PIP = '#!/bin/sh\nexec python3 /opt/pip.whl/pip "$@"\n'
UNPRIVILEGED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "network_mode": "none"}


def wheels() -> Path:
    """Return the folder of all that the image's Python needs, for the Python of the stand-in; kept between runs."""
    wanted = sorted(str(each) for each in map(Requirement, requires("vgpurun") or []) if is_needed(each))
    wanted = [each.partition(";")[0].strip() for each in wanted] + ["hatchling>=1.27", "pip"]
    key = hashlib.sha256(" ".join([*wanted, DEBIANS_PYTHON]).encode()).hexdigest()[:12]
    return kept(f"wheels-{key}", lambda folder: download(wanted, folder))


def download(wanted: list[str], folder: Path) -> None:
    platforms = [f"manylinux{each}_{platform.machine()}" for each in ("2014", "_2_17", "_2_28")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--python-version", DEBIANS_PYTHON, *(f"--platform={each}" for each in platforms)]
    try:
        subprocess.run([*command, *wanted], check=True)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"pip download failed with exit code {error.returncode}") from error


def is_needed(requirement: Requirement) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("k8s", "metrics"))


def with_pip(client: docker.DockerClient, tag: str, base_tag: str, folder: Path) -> None:
    """The base image with pip, as Python's own images have it."""
    with images.new_root() as context:
        shutil.copy(next(folder.glob("pip-*.whl")), context / "pip.whl")
        (context / "pip").write_text(PIP)
        (context / "pip").chmod(0o755)
        copies = "COPY pip.whl /opt/pip.whl\nCOPY pip /usr/local/bin/pip\n"
        (context / "Dockerfile").write_text(f"FROM {base_tag}\n{copies}")
        client.images.build(path=str(context), tag=tag, rm=True, forcerm=True)


def plugin(client: docker.DockerClient, tag: str, python_tag: str, builder_tag: str, folder: Path) -> None:
    with images.new_root() as context:
        copy_checkout(context)
        shutil.copytree(folder, context / "wheels")
        client.images.build(
            path=str(context),
            dockerfile="dockerfiles/Dockerfile.plugin",
            tag=tag,
            rm=True,
            forcerm=True,
            buildargs={
                "BUILDER_IMAGE": builder_tag,
                "PYTHON_IMAGE": python_tag,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": "/src/wheels",
            },
        )


@pytest.fixture(scope="module")
def image(image_maker: Callable[..., str], debian: str, cuda_devel: str) -> str:
    folder = wheels()
    python = image_maker("python", with_pip, debian, folder)
    return image_maker("plugin", plugin, python, cuda_devel, folder)


def run(engine: docker.DockerClient, image: str, *command: str, **options: Any) -> str:
    """Return what a container without any rights printed, as the DaemonSets' have none."""
    return engine.containers.run(image, list(command), remove=True, **UNPRIVILEGED, **options).decode()


@pytest.mark.parametrize("verb", ["device-plugin", "dra-plugin", "node-agent"])
def test_it_starts_with_every_daemon(engine: docker.DockerClient, image: str, verb: str) -> None:
    assert f"Usage: vgpurun {verb}" in run(engine, image, verb, "--help")


def test_it_runs_as_nobody_and_has_all_modules_and_the_library(engine: docker.DockerClient, image: str) -> None:
    program = (
        "import os; from vgpurun.host import library;"
        "import vgpurun.kubernetes.dra.service, vgpurun.kubernetes.pods;"
        "import vgpurun.metrics.collector, kubernetes.client; print(os.getuid(), library.find().path)"
    )
    assert run(engine, image, "-c", program, entrypoint="python3") == "65534 /opt/vgpurun/lib/libvgpu.so\n"


def test_what_it_puts_on_the_host_is_the_library(engine: docker.DockerClient, image: str, tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from vgpurun.host import library;"
        "from vgpurun.kubernetes.library import install_library;"
        "print(install_library(Path('/var/lib/vgpurun'), library.find().path))"
    )
    printed = run(
        engine, image, "-c", program, entrypoint="python3", user="0", volumes=[f"{tmp_path}:/var/lib/vgpurun"]
    )
    placed = tmp_path / Path(printed.strip()).relative_to("/var/lib/vgpurun")
    assert b"vgpurun-library version=" in placed.read_bytes()
    assert placed.stat().st_mode & 0o777 == 0o755
