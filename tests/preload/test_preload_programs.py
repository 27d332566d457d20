"""Programs of other kinds than loops of launches under a compute limit, on the simulated driver in real time.

The machine may be busy, so the bounds are wide. The exact ones are in tests/c on a clock of its own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, UUID, Sandbox

from cuda_driver import Driver
from support import assert_measured
from vgpurun.limits import usage_file

OTHER_SHORT_PROCESSES = [("stream_query", 4), ("event_query", 1), ("event_query", 4), ("synchronize", 1)]
pytestmark = pytest.mark.real_time

DRIVER = (f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
NEVER_S = 1e6
PERIOD_S = 0.04  # the limiter's (lib/src/scheduler/governor_parts.h)


def figures(sandbox: Sandbox, timeout_s: float, command: list[str | Path], **limits: str) -> list[float]:
    """Return what the program prints. A program that takes too long never came to an end."""
    try:
        result = sandbox.run(command, timeout_s, **limits)
    except subprocess.TimeoutExpired:
        return [NEVER_S, NEVER_S]
    assert result.returncode == 0, result.stderr
    return [float(figure) for figure in result.stdout.split()]


def test_what_nobody_waited_for_is_charged_at_the_end(sandbox: Sandbox) -> None:
    def program() -> None:
        """Wait for nothing by CUDA, with a kernel of a new name."""
        d = Driver.started()
        d.launch(d.kernel("spin_200ms"))
        time.sleep(0.3)

    sandbox.python(program, CUDA_DEVICE_SM_LIMIT="50")
    usage = Path(sandbox.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"])
    busy_ns = [device.busy_ns for device in usage_file.read_usage(usage, [UUID]) or ()]
    assert sum(busy_ns) / 1e9 == pytest.approx(0.2, rel=0.05)


# ---- kernels that spin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [50, *(pytest.param(percent, marks=pytest.mark.exhaustive) for percent in (20, 5))])
def test_a_launch_that_releases_a_spinning_kernel(
    sandbox: Sandbox, compile_c: Callable[..., Path], percent: int
) -> None:
    """The launch is held for a quarter of a second at most, and the program goes on."""
    program = compile_c("spins.c", *DRIVER)

    def held_s() -> float:
        longest_s, _ = figures(sandbox, 20, [program, "streams", "20"], CUDA_DEVICE_SM_LIMIT=str(percent))
        return longest_s

    assert_measured(held_s, lambda held_s: held_s < 0.3, tries=3)


@pytest.mark.parametrize(
    "percent", [50, 20, *(pytest.param(percent, marks=pytest.mark.exhaustive) for percent in (80, 30))]
)
def test_collectives_of_two_gpus(sandbox: Sandbox, compile_c: Callable[..., Path], percent: int) -> None:
    """A limit leaves two ranks that wait for each other most of its part of their speed, beyond the first burst, and no
    step takes longer than a period and a half more than is due.
    """
    program = compile_c("spins.c", *DRIVER)

    def slower_and_longest() -> tuple[float, float]:
        own_s, _ = figures(sandbox, 40, [program, "ranks", "100"])
        step_s, longest_s = figures(sandbox, 40, [program, "ranks", "100"], CUDA_DEVICE_SM_LIMIT=str(percent))
        return step_s / own_s * percent / 100, longest_s - own_s * 100 / percent

    assert_measured(slower_and_longest, lambda seen: 0.9 < seen[0] < 1.25 and seen[1] < 1.5 * PERIOD_S, tries=3)


# ---- short processes ------------------------------------------------------------------------------------------------


def share_of_short_processes(sandbox: Sandbox, compiled: Callable[..., Path], way: str, at_a_time: int) -> float:
    program = compiled("polls.c", *DRIVER)
    processes = 10
    with ThreadPoolExecutor(at_a_time) as pool:
        runs = [pool.submit(figures, sandbox, 60, [program, way], CUDA_DEVICE_SM_LIMIT="20") for _ in range(processes)]
        times = [run.result() for run in runs]
    return processes * 0.060 / (max(end for _, end in times) - min(begin for begin, _ in times))


@pytest.mark.real_time(measure=share_of_short_processes)
@pytest.mark.parametrize(
    ("way", "at_a_time"),
    [
        ("stream_query", 1),
        ("synchronize", 4),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in OTHER_SHORT_PROCESSES),
    ],
)
def test_short_processes(measured: Callable[[], float], way: str, at_a_time: int) -> None:
    """Their calls to the driver are the last that the library hears of them; their work takes the time that is due."""
    assert_measured(measured, lambda share: 0.17 < share < 0.23, tries=3)
