"""What all test tiers share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from debian_packages import UnavailableError
from support import LIBRARY, is_set, unavailable

# Helpers whose assertions should say what they compared; this must come before their import.
pytest.register_assert_rewrite("cli", "terminal")


TESTS = Path(__file__).parent
# Fixtures: an engine and a browser are started once, and tests count what an engine has.
ONE_PROCESS = ("docker_host", "browser")


@pytest.fixture(scope="session")
def built_library() -> Path:
    """lib/build/libvgpu.so, which `make lib` builds."""
    if not LIBRARY.exists():
        pytest.fail("lib/build/libvgpu.so is not there: run `make lib`", pytrace=False)
    return LIBRARY


def pytest_configure() -> None:
    """Go on ignoring what a shell has a job in the background ignore, or nohup its command, but by a handler.

    So the code under test finds nothing ignored, and neither does a program that a test starts.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests have to be in one process, where others run beside them, and which measure a real GPU."""
    for item in items:
        for fixture in ONE_PROCESS:
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(fixture))
        if TESTS / "gpu" in item.path.parents:
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
