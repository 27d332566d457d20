"""Shares that programs have where the driver does not let its scheduler hold the compute limit, and launches are held.

The promise is lower than in test_scheduler.py, and the bounds are wide. tests/c/gate_test.c is on a clock of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox, without_scheduler
from together import assert_shares, compared, each_alone, measured_together, started, work

from support import assert_measured
from support.programs import Program, text_of
from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota

LAUNCHES = ("launches", "synchronised", "a graph", "of 50 us")


@pytest.fixture(autouse=True)
def held(sandbox: Sandbox) -> None:
    without_scheduler(sandbox)


def launching(kind: str) -> Program:
    """Return a program that prints its share."""

    def program() -> None:
        d, k = started()
        match kind:
            case "launches":
                print(work(d, 1.5, lambda: d.launch(k)))
            case "synchronised":
                print(work(d, 1.5, lambda: (d.launch(k), d.synchronize())))
            case "a graph":
                graph = d.kernel_graph(d.kernel("spin_50us"), 100)
                print(work(d, 1.5, lambda: d.graph_launch(graph), 5e-3))
            case "of 50 us":
                short = d.kernel("spin_50us")
                print(work(d, 1.5, lambda: d.launch(short), 50e-6))

    return program


def shares_by_kind(sandbox: Sandbox, percent: int) -> dict[str, float]:
    programs = {kind: (sys.executable, "-c", text_of(launching(kind))) for kind in LAUNCHES}
    return each_alone(sandbox, programs, CUDA_DEVICE_SM_LIMIT=str(percent))


@pytest.mark.real_time(measure=shares_by_kind)
@pytest.mark.parametrize("percent", [20, 60])
def test_every_launch_is_held(measured: Callable[[], dict[str, float]], percent: int) -> None:
    """A wait that a busy machine lets end late is charged until then."""
    assert_measured(measured, lambda seen: all(0.25 * percent < 100 * share < percent + 6 for share in seen.values()))


def total(sandbox: Sandbox) -> float:
    without_scheduler(sandbox)
    return sum(measured_together([sandbox.start_python(compared, CUDA_DEVICE_SM_LIMIT="40") for _ in range(2)]))


@pytest.mark.real_time(measure=total)
def test_two_processes_share_one_limit(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda total: 0.25 < total < 0.47)


def beside_one_that_is_hardly_there(sandbox: Sandbox) -> float:
    def hardly_there() -> None:
        d, _ = started()
        k = d.kernel("spin_50us")
        print("ready", flush=True)
        while True:
            d.launch(k)
            d.synchronize()
            time.sleep(0.2)

    without_scheduler(sandbox)
    usage = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / "another")}
    with sandbox.start_python(hardly_there, CUDA_DEVICE_SM_LIMIT="97", **usage) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "ready\n"
            return float(sandbox.python(launching("launches"), CUDA_DEVICE_MEMORY_LIMIT="4g"))
        finally:
            other.kill()


@pytest.mark.real_time(measure=beside_one_that_is_hardly_there)
def test_no_tenant_takes_the_gpu_from_one_without_a_limit_by_its_own_alone(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda share: share > 0.8)


@pytest.mark.parametrize("is_held", [True, False])
def test_which_limiter_a_process_has_is_in_its_slot(sandbox: Sandbox, tmp_path: Path, is_held: bool) -> None:
    def program() -> None:
        d, k = started()
        d.launch(k)
        d.synchronize()
        print("ready", flush=True)
        input()

    config = Path(sandbox.environment["VGPUSIM_CONFIG"])
    if not is_held:
        config.write_text(config.read_text().replace("nvidiactl: false\n", ""))
    usage = tmp_path / "usage"
    limits = {"CUDA_DEVICE_SM_LIMIT": "50", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(usage)}
    with sandbox.start_python(program, **limits) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        slot = abi.Usage.from_buffer_copy(usage.read_bytes()).processes[0]
        process.kill()
    assert slot.devices[0].limiter == (abi.LIMITER_LAUNCHES if is_held else abi.LIMITER_SCHEDULER)


def test_a_pause_holds_launches_and_ends(sandbox: Sandbox, tmp_path: Path) -> None:
    def program() -> None:
        d, k = started()
        d.launch(k)
        d.synchronize()
        print("ready", flush=True)
        input()
        d.launch(k)
        print("launched", flush=True)

    limits, quota = tmp_path / "limits", Quota(None, 50)
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
    with sandbox.start_python(program, VGPURUN_LIMITS_FILE=str(limits)) as process:
        assert process.stdin is not None and process.stdout is not None and process.stdout.readline() == "ready\n"
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 50, paused=True))])
        time.sleep(0.05)  # a launch looks at its limits once in a millisecond
        process.stdin.write("go on\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        limits_file.write_limits(limits, [(sandbox.uuid, quota)])
        assert process.stdout.readline() == "launched\n"


def test_a_launch_that_releases_a_spinning_kernel(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    program = compile_c("spins.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    result = sandbox.run([program, "streams", "5"], 60, CUDA_DEVICE_SM_LIMIT="20")
    assert result.returncode == 0 and float(result.stdout.split()[0]) < 1.5, result.stderr


@pytest.mark.real_time
def test_launches_that_a_signal_handler_leaves_by_siglongjmp(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    """The share is afterwards what it was."""
    program = compile_c("jumps.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    programs = {"a thread that goes on": [program, "20"], "threads that end": [program, "20", "ends"]}
    assert_shares(sandbox, programs, 0.25, 0.47, CUDA_DEVICE_SM_LIMIT="40")


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
def test_captures_beside_a_thread_that_waits(sandbox: Sandbox, compile_c: Callable[..., Path], mode: int) -> None:
    program = compile_c("captures.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    result = sandbox.run([program, "100", str(mode), "event_query"], CUDA_DEVICE_SM_LIMIT="60")
    assert result.stdout == "0\n", result.stderr
