"""A real Docker Engine, images on it, and the command line that runs against it.

With REQUIRE_ENGINE=1 a test fails where it would otherwise be skipped because there is no engine or no image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

import images
from cli import Cli, clean_environment, cli_beside
from docker_command import docker_command
from images import debian_tar
from private_engine import fetched_engine, private_engine
from support import is_set, own_gpu_config, python_of, short_folder, unavailable
from support.debian_packages import UnavailableError, tool, unpacked

REPOSITORY = "vgpurun-test"
# No engine test is skipped where an engine is required; these need a kubelet besides, which takes long to build.
collect_ignore = [] if os.environ.get("KUBELET") else ["test_real_kubelet.py"]


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of an engine: the one that Docker's own variables name, or else a private one."""
    try:
        client = docker.from_env()
        client.ping()
    except (docker.errors.DockerException, OSError):
        pass
    else:
        yield os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        return
    with private_engine() as host:
        yield host


@pytest.fixture(scope="session")
def engine(docker_host: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=docker_host)
    yield client
    client.close()


@pytest.fixture(scope="session")
def image_maker(engine: docker.DockerClient) -> Iterator[Callable[..., str]]:
    """Makes an image once, returns its tag, and removes it at the end of the session."""
    tags: list[str] = []

    def make(name: str, recipe: Callable[..., None], *arguments: object) -> str:
        tag = f"{REPOSITORY}/{name}:1"
        recipe(engine, tag, *arguments)
        tags.append(tag)
        return tag

    yield make
    for tag in reversed(tags):
        engine.images.remove(tag, force=True)


@pytest.fixture(scope="session")
def debian(image_maker: Callable[..., str]) -> str:
    """An image with glibc and Python."""
    return image_maker("debian", images.debian)


@pytest.fixture(scope="session")
def busybox(image_maker: Callable[..., str]) -> str:
    """An image with a static program and no C library."""
    return image_maker("busybox", images.busybox)


@pytest.fixture(scope="session")
def musl(image_maker: Callable[..., str]) -> str:
    """An image whose C library is musl."""
    return image_maker("musl", images.musl)


@pytest.fixture(scope="session")
def cuda_devel(image_maker: Callable[..., str]) -> str:
    """An image with a compiler and the CUDA headers, as a base for the library's build."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    headers = [*packages.glob("*/include/cuda.h"), *packages.glob("*/include/nvml.h")]
    include_dirs = sorted({header.parent for header in headers})
    if not include_dirs:
        unavailable("the CUDA headers are not installed: make venv", required=is_set("REQUIRE_ENGINE"))
    base = image_maker("compilers", images.debian, images.BUILD)
    return image_maker("cuda-devel", images.cuda_devel, base, include_dirs)


@pytest.fixture
def own_gpu(vgpurun: Cli, tmp_path: Path) -> Cli:
    """The command line with a GPU of 16 GiB that no other test knows."""
    vgpurun.environment["VGPUSIM_CONFIG"] = own_gpu_config(tmp_path)
    return vgpurun


@pytest.fixture
def vgpurun(
    engine: docker.DockerClient,
    docker_host: str,
    built_library: Path,
    tmp_path: Path,
) -> Iterator[Cli]:
    """The command line with an empty state folder. Whatever a failed test leaves on the engine is removed."""
    state_dir, home = tmp_path / "state", tmp_path / "home"
    home.mkdir()
    cli = Cli(engine, clean_environment(docker_host, state_dir, home), state_dir)
    yield cli
    cli.remove_containers()


@pytest.fixture(scope="session")
def host_v2() -> Iterator[str]:
    """The address of a private engine where /sys/fs/cgroup is the v2 hierarchy."""
    try:
        with private_engine(with_cgroup2=True) as host:
            yield host
    except UnavailableError as error:
        unavailable(str(error), required=is_set("REQUIRE_ENGINE"))


@pytest.fixture(scope="session")
def client_v2(host_v2: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=host_v2)
    if client.info()["CgroupVersion"] != "2":
        unavailable("the kernel has no cgroup v2")
    yield client
    client.close()


@pytest.fixture(scope="session")
def debian_v2(client_v2: docker.DockerClient) -> str:
    images.debian(client_v2, "vgpurun-test/debian:2")
    return "vgpurun-test/debian:2"


@pytest.fixture
def cli_v2(client_v2: docker.DockerClient, host_v2: str, built_library: Path, tmp_path: Path) -> Iterator[Cli]:
    """The command line where the engine is, with a driver that has limits of its own and a GPU of 16 GiB."""
    with cli_beside(client_v2, host_v2, tmp_path) as cli:
        yield cli
        cli.remove_containers()


@pytest.fixture(scope="session")
def docker_cli() -> str:
    """Docker's own command line."""
    return docker_command()


@pytest.fixture
def as_nobody(docker_host: str) -> Iterator[tuple[str, ...]]:
    """The command line by an ordinary user in the group of the engine's socket."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; as an ordinary one, every other test is this test")
    group = Path(docker_host.removeprefix("unix://")).stat().st_gid
    with python_of(65534, f"--groups={group}") as python:
        yield *python, "-m", "vgpurun"


@pytest.fixture(scope="module")
def podman() -> Iterator[list[str]]:
    """Podman with a place of its own, and the tests' image as vgpurun-test.

    Its runtime is the private engine's: its own one, crun, refuses a machine that has both cgroup versions.
    """
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's podman has no place for the slice's files")
    with short_folder("vgpurun-podman-") as place:  # podman refuses a runroot of more than 50 characters
        command = [
            tool("podman", "podman"), "--root", f"{place}/root", "--runroot", f"{place}/run",
            "--tmpdir", f"{place}/tmp", "--cgroup-manager", "cgroupfs",
            "--runtime", str(fetched_engine() / "bin" / "runc"),
        ]  # fmt: skip
        subprocess.run([*command, "import", "--quiet", debian_tar(), "vgpurun-test"], check=True)
        yield command
        subprocess.run([*command, "system", "reset", "--force"], check=False, capture_output=True)


@pytest.fixture(scope="session")
def compose() -> Path:
    """Find Docker Compose as a command by itself."""
    found = shutil.which("docker-compose")
    return Path(found or unpacked("docker-compose", "trixie") / "usr/libexec/docker/cli-plugins/docker-compose")
