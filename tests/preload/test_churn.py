"""Many processes that allocate and free at random against one limit, and processes that are killed while they do.

The simulated driver is the witness: it keeps the most memory that was ever in use at once. VGPURUN_STRESS_SECONDS says
how long each test goes on; 3 by default.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from cuda_driver import Driver, byref, c_uint64
from support import assert_measured
from vgpurun import abi

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("VGPURUN_STRESS_SECONDS", "3"))
LIMIT_BYTES = 1 << 30
KEPT_BYTES = 4 << 20  # by a process for its next small allocations, at the most
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": str(LIMIT_BYTES), "LIBCUDA_LOG_LEVEL": "0"}
MACHINE = """
devices:
  - name: Simulated
    uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000
    memory_mib: 65536
    context_overhead_mib: 0
"""
PEAK_OFFSET = 64 + 48  # struct state in lib/sim/state.h: the header, then the first device


def fill() -> None:
    d = Driver.started()
    held = 0
    while d.result("cuMemAlloc_v2", byref(c_uint64()), 2 << 20) == "CUDA_SUCCESS":
        held += 2 << 20
    print(held)


@pytest.fixture
def churn(sandbox: Sandbox, compile_c: Callable[..., Path]) -> Callable[..., subprocess.Popen[str]]:
    """Starts programs/churn.c: for how long, with which seed, in how many threads, with how many kinds of memory."""
    (sandbox.folder / "sim.yaml").write_text(MACHINE)
    program = compile_c("churn.c", "-O1", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread", output="churn")

    def start(
        seconds: float, seed: int, threads: int = 1, kinds: int | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [program, str(seconds), str(seed), str(threads), *([] if kinds is None else [str(kinds)])],
            env=sandbox.variables(**{**LIMIT, **variables}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def figures(process: subprocess.Popen[str]) -> tuple[int, int, int]:
    """Calls, refusals, and the longest time that a call took, in microseconds. The process waits after them."""
    calls, refused, longest_us = map(int, process.stdout.readline().split())
    return calls, refused, longest_us


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes)


def peak_bytes(sandbox: Sandbox) -> int:
    return int(struct.unpack_from("<Q", (sandbox.folder / "sim.state").read_bytes(), PEAK_OFFSET)[0])


def counted_bytes(sandbox: Sandbox) -> int:
    """All that the usage file counts, whoever for."""
    usage = abi.Usage.from_buffer_copy((sandbox.folder / "usage").read_bytes())
    return sum(process.devices[0].counted_bytes + process.devices[0].host_bytes for process in usage.processes)


def test_the_limit_holds_at_every_instant(sandbox: Sandbox, churn: Callable[..., subprocess.Popen[str]]) -> None:
    processes = [churn(SECONDS, seed) for seed in range(64)]
    results = [figures(process) for process in processes]
    print(f"calls {sum(r[0] for r in results)}, refused {sum(r[1] for r in results)}, peak {peak_bytes(sandbox)}")
    assert peak_bytes(sandbox) <= LIMIT_BYTES
    assert peak_bytes(sandbox) > LIMIT_BYTES * 0.9, "the limit was not reached"
    assert counted_bytes(sandbox) <= len(processes) * KEPT_BYTES, "all that was allocated has been freed"
    end(processes)
    assert int(sandbox.python(fill, **LIMIT)) == LIMIT_BYTES


@pytest.mark.parametrize("kinds", [pytest.param(1, id="plain", marks=pytest.mark.exhaustive), 2], ids=str)
def test_threads_that_make_a_correction_stale(
    sandbox: Sandbox, churn: Callable[..., subprocess.Popen[str]], kinds: int
) -> None:
    """NVML's answers are of before or after what other threads do: a context is not forgotten for that."""
    (sandbox.folder / "sim.yaml").write_text(MACHINE.replace("mib: 0", "mib: 518"))
    refused = 0
    for seed in range(10):
        process = churn(0.3, seed, 8, kinds=kinds)
        refused += figures(process)[1]
        end([process])
        assert peak_bytes(sandbox) <= LIMIT_BYTES
    assert refused > 0, "the limit was not reached"


@pytest.mark.parametrize(
    "seed",
    [pytest.param(1, id="fixed", marks=pytest.mark.exhaustive), pytest.param(random.randrange(1 << 20), id="random")],
)
def test_alone_nothing_is_refused_that_fits(churn: Callable[..., subprocess.Popen[str]], seed: int) -> None:
    print(f"seed {seed}")
    process = churn(min(SECONDS, 10), seed, ALONE="1", CUDA_DEVICE_MEMORY_LIMIT="256m")
    calls, refused, _ = figures(process)
    assert calls > 1000
    assert refused > 0, "the limit was not reached"
    end([process])


@pytest.mark.real_time
def test_killed_processes_leave_nothing(sandbox: Sandbox, churn: Callable[..., subprocess.Popen[str]]) -> None:
    """Nor does anybody wait for them: calls take no longer than they do with all alive."""
    seeds = iter(range(1 << 30))

    def longest_calls_us() -> tuple[int, int]:
        """Without kills, and beside processes that are killed."""
        quiet = [churn(SECONDS / 4, next(seeds)) for _ in range(6)]
        longest_us = max(figures(process)[2] for process in quiet)
        end(quiet)
        witness = churn(SECONDS / 2, next(seeds))
        victims = [churn(3600, next(seeds)) for _ in range(5)]
        killed, until = 0, time.monotonic() + SECONDS / 2
        while time.monotonic() < until:
            time.sleep(random.uniform(0, 0.04))
            victim = victims.pop(random.randrange(len(victims)))
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            victims.append(churn(3600, next(seeds)))
            killed += 1
        calls, _, longest_with_kills_us = figures(witness)
        print(
            f"killed {killed}; {calls} calls beside them, the longest {longest_with_kills_us} us ({longest_us} without)"
        )
        for victim in victims:
            victim.kill()
            victim.communicate()
        end([witness])
        return longest_us, longest_with_kills_us

    assert_measured(longest_calls_us, lambda seen: seen[1] < max(100_000, 3 * seen[0]))
    assert peak_bytes(sandbox) <= LIMIT_BYTES
    assert int(sandbox.python(fill, timeout_s=10, **LIMIT)) == LIMIT_BYTES, "at once"
    assert counted_bytes(sandbox) == LIMIT_BYTES, "of the last process alone: the dead's slots have been wiped"


def start_together(churn: Callable[..., subprocess.Popen[str]], count: int, **variables: str) -> tuple[float, float]:
    """Seconds until all of them have used the GPU, and seconds of processor time that they took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    processes = [churn(0, seed, **variables) for seed in range(count)]
    for process in processes:
        figures(process)
    ready_s = time.monotonic() - began
    end(processes)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ready_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.real_time
def test_300_processes_start_at_once(churn: Callable[..., subprocess.Popen[str]]) -> None:
    """The library's cost for each does not grow with their number: it stays near the cost without it."""

    def processor_s() -> tuple[float, float]:
        """Return the processor time with the library and without."""
        with_s, without_s = start_together(churn, 300), start_together(churn, 300, LD_PRELOAD="")
        print(f"until all are ready, and processor time: {with_s} s with the library, {without_s} s without")
        return with_s[1], without_s[1]

    assert_measured(processor_s, lambda seen: seen[0] < 5 * seen[1])
