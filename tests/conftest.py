"""Fixtures that all test tiers share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker  # noqa: F401  # the whole of it, before vgpurun makes do with less
import pytest
from xdist.scheduler import LoadScopeScheduling

from support import CHECKOUT, LIBRARY, is_set, remove_tenants, unavailable
from support.debian_packages import UnavailableError

# Else gRPC starts its threads anew in each process that a test forks, which then find their files closed.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Helpers whose assertions should say what they compared; this must come before their import.
pytest.register_assert_rewrite("cli", "terminal")

# Tests that go to one process. There is one browser, with pages that take long to make, one cluster of each Slurm
# and Ray, and one folder of the machine for descriptions of devices. An engine that is there already has the containers
# of all; a private one is a process's.
CDI = ("tests/engine/test_run_drivers.py", "tests/engine/test_cdi_engines.py", "tests/engine/test_dra_containers.py")
CLUSTERS = [("tests/slurm/",), ("tests/ray/",)]
CGROUP2 = ("tests/engine/test_driver_limits.py", "tests/engine/test_guard_cgroup2.py")  # each has an engine of its own
TLS = ("tests/engine/test_tls_engine.py",)  # likewise
IMAGES = [
    ("tests/engine/test_installation.py",),
    ("tests/engine/test_plugin_image.py",),
]  # slow images
IN_ONE_PROCESS = [("tests/page/",), *CLUSTERS, CDI, CGROUP2, TLS, *IMAGES]
if "DOCKER_HOST" in os.environ or Path("/var/run/docker.sock").exists():
    IN_ONE_PROCESS = [("tests/page/",), *CLUSTERS, ("tests/engine/",)]


class ByTest(LoadScopeScheduling):
    """Each test goes to the process that is free first, but some go to one.

    pytest-xdist's own groups (3.8) come to nothing under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((group[0] for group in IN_ONE_PROCESS if nodeid.startswith(group)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByTest | None:
    """Make the scheduler of a run in several processes; pytest-xdist's own takes less, where any process will do."""
    return ByTest(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def built_library() -> Path:
    """lib/build/libvgpu.so, which `make lib` builds."""
    if not LIBRARY.exists():
        pytest.fail("lib/build/libvgpu.so is not there: run `make lib`", pytrace=False)
    return LIBRARY


@pytest.fixture(scope="session")
def cuda_includes() -> list[str]:
    """The -I flags for cuda.h and nvml.h."""
    make = ["make", "-s", "-C", str(CHECKOUT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
    return subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="session", autouse=True)
def _no_tenants_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave no tenants of what tests share."""
    yield
    remove_tenants(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _no_tenants_of_a_test_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no tenants of a test: all that come after it would look through them."""
    yield
    if folder := request.node.funcargs.get("tmp_path"):
        remove_tenants(folder)


def pytest_configure() -> None:
    """Go on ignoring what a shell has a job in the background ignore, or nohup its command, but by a handler.

    So the code under test finds nothing ignored, and neither does a program that a test starts.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what measures a real GPU."""
    for item in items:
        if item.nodeid.startswith("tests/gpu/"):
            item.add_marker(pytest.mark.real_time)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixtures need what cannot be had; fail it where REQUIRE_ENGINE says that everything can."""
    yield from _skipped_where_unavailable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Do the same for what the test itself needs."""
    yield from _skipped_where_unavailable()


def _skipped_where_unavailable() -> Iterator[None]:
    try:
        yield
    except UnavailableError as error:
        unavailable(str(error), required=is_set("REQUIRE_ENGINE"))
