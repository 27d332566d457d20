"""A GPU, and both ways of running a program on it."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from runners import GLIBC_IMAGE, HOST_FOLDERS, IMAGE, Container, Local, Runner, c_library

from support import is_set, python_with_torch, unavailable


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Say at once why a test failed: a run on a machine that is lent for a while may be cut off before its end."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if report.failed and terminal is not None:
        terminal.write_line(f"\n{report.longreprtext}")
        for title, text in report.sections:
            terminal.write_line(f"{title}\n{text}")
        terminal.flush()


@pytest.fixture(scope="session", autouse=True)
def python() -> str:
    """An interpreter with PyTorch, on a machine with a GPU; else this tier is skipped, or fails with REQUIRE_GPU=1."""
    required = is_set("REQUIRE_GPU")
    if shutil.which("nvidia-smi") is None or not Path("/dev/nvidiactl").exists():
        unavailable("this machine has no NVIDIA GPU", required=required)
    found = python_with_torch()
    if found is None:
        unavailable("PyTorch is not installed; GPU_PYTHON may name a Python that has it", required=required)
    return found


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker Engine that its own variables name."""
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException:
        unavailable("no Docker Engine answers", required=is_set("REQUIRE_ENGINE"))
    yield client
    client.close()


@pytest.fixture(scope="session")
def cdi_folder(engine: docker.DockerClient) -> Path:
    """The folder from which the engine reads CDI specifications."""
    folders = engine.info().get("CDISpecDirs")
    if not folders:
        unavailable("this engine has no CDI")
    return Path(folders[0])


@pytest.fixture(scope="session")
def glibc_image(engine: docker.DockerClient) -> Iterator[str]:
    """An image with nothing but a C library: this machine's."""
    repository, tag = GLIBC_IMAGE.split(":")
    engine.api.import_image_from_data(c_library(), repository=repository, tag=tag)
    yield GLIBC_IMAGE
    engine.images.remove(GLIBC_IMAGE, force=True)


@pytest.fixture(scope="session")
def host_image(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An image that is empty but for mount points; gives an /etc that has a place for ld.so.preload."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in (*HOST_FOLDERS, "dev", "etc", "proc", "programs", "sys", "tmp", "var"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
    repository, tag = IMAGE.split(":")
    engine.api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag)
    etc = tmp_path_factory.mktemp("etc") / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("shadow*"))
    (etc / "ld.so.preload").touch()
    yield etc
    engine.images.remove(IMAGE, force=True)


@pytest.fixture(params=["local", "container"])
def runner(request: pytest.FixtureRequest, python: str) -> Runner:
    """Both ways of running a program under limits."""
    if request.param == "local":
        return Local(python)
    return Container(python, request.getfixturevalue("host_image"))
