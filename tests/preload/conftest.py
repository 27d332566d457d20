"""A simulated machine for every test, and programs of our own in C."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sandbox import BUSY_MACHINE, PROGRAMS, Sandbox, simulated_machine
from together import measuring

from support import CHECKOUT, unavailable
from support.programs_of_c import built
from support.suspension import Guard, Host, Program

HERE = Path(__file__).parent


@pytest.fixture
def sandbox(built_library: Path, tmp_path: Path) -> Iterator[Sandbox]:
    with simulated_machine(tmp_path) as machine:
        yield machine


@pytest.fixture
def environment(built_library: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a host without an engine, whose state folder is the test's own."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("VGPU", "DOCKER_", "CUDA_"))}
    return kept | {
        "VGPURUN_STATE_DIR": str(tmp_path / "state"),
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock",
        "PYTHONPATH": str(CHECKOUT / "tests"),
    }


@pytest.fixture
def busy_gpu(sandbox: Sandbox) -> Sandbox:
    """See BUSY_MACHINE."""
    (sandbox.folder / "sim.yaml").write_text(BUSY_MACHINE)
    return sandbox


@pytest.fixture(scope="session")
def _measured_at_once(request: pytest.FixtureRequest, built_library: Path) -> dict[str, Future[Any]]:
    """Measures what all chosen tests with `real_time(measure=...)` name, some at the same time, and no other test.

    Each has a simulated machine of its own, whose GPUs are at work; this one hardly is.
    """
    is_one_of_many = hasattr(request.config, "workerinput")  # workers of pytest-xdist: each would measure all of them
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        return {
            item.nodeid: pool.submit(measuring(item, request))
            for item in request.session.items
            if isinstance(item, pytest.Function) and "measured" in item.fixturenames and not is_one_of_many
        }


@pytest.fixture
def measured(request: pytest.FixtureRequest, _measured_at_once: dict[str, Future[Any]]) -> Callable[[], Any]:
    """Calls what this test's `real_time(measure=...)` names: the first time that was beside others, then it is alone.

    That function gets a machine of its own as `sandbox` or `busy_gpu`, and what it names of the test's parameters and
    of the session's fixtures.
    """
    again = measuring(request.node, request)
    at_once = [first] if (first := _measured_at_once.get(request.node.nodeid)) else []
    return lambda: at_once.pop().result() if at_once else again()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is suspended and resumed, which takes seconds."""
    for item in items:
        if "host" in getattr(item, "fixturenames", ()) and item.path.parent == HERE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def host(built_library: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with simulated GPUs of its own, for programs that are suspended."""
    made = Host(tmp_path)
    yield made
    made.end()


@pytest.fixture
def start(host: Host) -> Iterator[Callable[..., Program]]:
    """Starts such programs there, and ends them."""
    started = []

    def start_one(*options: str, **variables: str) -> Program:
        started.append(Program(host, *options, **variables))
        return started[-1]

    yield start_one
    for program in started:
        program.end()


@pytest.fixture
def guard(host: Host) -> Iterator[Guard]:
    """The daemon of that host, which takes root."""
    if os.geteuid():
        unavailable("the guard takes root")
    running = Guard(host)
    yield running
    running.end()
    print(running.said.read_text())  # shown if the test fails
    assert "Traceback" not in running.said.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for a profile."""
    made = tmp_path / "profile"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def compiled(cuda_includes: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile one of our programs with the CUDA headers on its path, once with the same arguments for gcc."""
    folder = tmp_path_factory.mktemp("compiled")

    @cache
    def build(source: str, *arguments: str) -> Path:
        result = folder / str(build.cache_info().misses)
        subprocess.run(["gcc", *cuda_includes, str(PROGRAMS / source), *arguments, "-o", str(result)], check=True)
        return result

    return build


@pytest.fixture
def compile_c(compiled: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Make one of our programs in the test's own folder; further arguments go to gcc."""

    def build(source: str, *arguments: str, output: str = "program") -> Path:
        return Path(shutil.copy(compiled(source, *arguments), tmp_path / output))

    return build


@pytest.fixture(scope="session")
def sanitized() -> Callable[[str], str]:
    """LD_PRELOAD for the library with sanitizers, which is built where a source is newer."""

    @cache
    def build(kinds: str) -> str:
        runtime_name = "libtsan.so" if kinds == "thread" else "libasan.so"
        command = ["gcc", f"-print-file-name={runtime_name}"]
        runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(runtime).is_absolute():
            pytest.skip(f"this gcc has no {runtime_name}")
        return f"{runtime}:{built('libvgpu.so', kinds.replace(',', '-'))}"

    return build
