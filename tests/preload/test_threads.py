"""Programs of several threads under ThreadSanitizer, each for a second: none reaches for what another one changes.

The driver is as it is. Its one lock would put in order what the library has to, so what the sanitizer is told of it is
left out.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, UUID, Sandbox

from support.programs_of_c import built
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota

pytestmark = pytest.mark.slow

KINDS = [
    "own_streams",
    "one_stream",
    "default_streams",
    "new_streams",
    "new_contexts",
    "waits",
    "memory",
    "graphs",
    "captures",
    "forks",
    "two_gpus",
    "short_threads",
]
LIMITS = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "50"}


@pytest.fixture
def start(
    sandbox: Sandbox, compile_c: Callable[..., Path], sanitized: Callable[[str], str]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a kind of program, in a container of its own where it is given a usage file."""
    program = compile_c("threads.c", "-g", "-fsanitize=thread", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    suppressions = sandbox.folder / "suppressions"
    suppressions.write_text("called_from_lib:libcuda.so.1\n")
    options = {"LD_PRELOAD": sanitized("thread"), "TSAN_OPTIONS": f"suppressions={suppressions}"}
    started = []

    def start(kind: str, seconds: int, **variables: str) -> subprocess.Popen[str]:
        environment = sandbox.variables(**{**options, **variables})
        command = [str(program), str(seconds), kind]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def assert_no_race(process: subprocess.Popen[str], kind: str) -> None:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and output == f"{kind}\n", errors[-4000:]


@pytest.mark.parametrize("kind", KINDS)
def test_threads(start: Callable[..., subprocess.Popen[str]], kind: str) -> None:
    assert_no_race(start(kind, 1, **LIMITS), kind)


@pytest.mark.parametrize("kind", ["own_streams", "new_contexts", "waits", "two_gpus"])
def test_threads_in_company(sandbox: Sandbox, start: Callable[..., subprocess.Popen[str]], kind: str) -> None:
    """Two containers take turns."""
    usages = [{"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / f"usage-{name}")} for name in "ab"]
    for process in [start(kind, 1, **LIMITS, **usage) for usage in usages]:
        assert_no_race(process, kind)


@pytest.mark.parametrize("kind", ["own_streams", "waits"])
def test_threads_while_the_limit_changes(
    sandbox: Sandbox, start: Callable[..., subprocess.Popen[str]], kind: str
) -> None:
    limits = sandbox.folder / "limits"
    quotas = [Quota(None, percent) for percent in (50, 10, None, 90)]
    limits.write_bytes(limits_file.limits_bytes([(UUID, quotas[0])]))
    process = start(kind, 60, VGPURUN_LIMITS_FILE=str(limits))
    assert process.stdout and process.stdout.readline() == f"{kind}\n"
    for number in range(50):
        limits_file.write_limits(limits, [(UUID, quotas[number % len(quotas)])])
        time.sleep(0.02)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors[-4000:]


@pytest.mark.parametrize("kind", ["own_streams", "new_streams", "captures"])
def test_threads_with_a_profile(folder: Path, start: Callable[..., subprocess.Popen[str]], kind: str) -> None:
    assert_no_race(start(kind, 1, **LIMITS, PFLOG=str(folder)), kind)
    assert os.listdir(folder)


@pytest.mark.exhaustive  # the library has the tests above: here it is the simulated driver that is looked at
@pytest.mark.parametrize("kind", KINDS)
def test_threads_in_the_simulated_driver(start: Callable[..., subprocess.Popen[str]], kind: str) -> None:
    driver = built("sim/libcuda.so.1", "thread").parent
    assert_no_race(start(kind, 1, **LIMITS, LD_LIBRARY_PATH=str(driver), TSAN_OPTIONS=""), kind)
