"""The compute limit on the simulated driver, in real time.

The machine may be busy, so the bounds are wide. How exact the limiter is, tests/c shows on a clock of its own, and
tests/bench on a GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox
from together import KERNEL_S, assert_shares, compare, compared, each_alone, measured_together, started, work

from cuda_driver import CAPTURE_GLOBAL, CAPTURE_RELAXED, CAPTURE_THREAD_LOCAL, STREAM_NON_BLOCKING, Driver, in_threads
from support import assert_measured
from support.programs import Program, text_of
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import read_usage

LAUNCHES = (
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "a stream",
    "synchronised",
    "a graph",
)


def launcher(d: Driver, k: int, kind: str) -> tuple[Callable[[], object], float]:
    """Return what launches, and how long that computes in seconds."""
    match kind:
        case "cuLaunchKernel":
            return lambda: d.launch(k), KERNEL_S
        case "cuLaunchKernel_ptsz":
            return lambda: d.launch(k, symbol="cuLaunchKernel_ptsz"), KERNEL_S
        case "cuLaunchKernelEx":
            return lambda: d.launch_ex(k), KERNEL_S
        case "cuLaunchCooperativeKernel":
            return lambda: d.launch_cooperative(k), KERNEL_S
        case "a stream":
            stream = d.stream()
            return lambda: d.launch(k, stream), KERNEL_S
        case "synchronised":
            return lambda: (d.launch(k), d.synchronize()), KERNEL_S
        case "a graph":
            graph = d.kernel_graph(d.kernel("spin_50us"), 100)
            return lambda: d.graph_launch(graph), 5e-3
    raise ValueError(kind)


def launching(kind: str) -> Program:
    """Return a program that prints its share."""

    def program() -> None:
        d, k = started()
        launch, kernel_s = launcher(d, k, kind)
        print(work(d, 1.5, launch, kernel_s))

    return program


@pytest.mark.real_time
def test_every_launch_is_limited(sandbox: Sandbox) -> None:
    programs = {kind: (sys.executable, "-c", text_of(launching(kind))) for kind in LAUNCHES}
    assert_shares(sandbox, programs, 0.23, 0.37, CUDA_DEVICE_SM_LIMIT="30")


def share(busy_gpu: Sandbox, limits: dict[str, str]) -> float:
    return float(busy_gpu.python(launching("cuLaunchKernel"), **limits))


@pytest.mark.real_time(measure=share)
@pytest.mark.parametrize(
    "limits",
    [{"CUDA_DEVICE_SM_LIMIT_1": "10"}, pytest.param({"CUDA_DEVICE_SM_LIMIT": "100"}, marks=pytest.mark.exhaustive)],
)
def test_what_is_not_limited_is_not_slowed(measured: Callable[[], float], limits: dict[str, str]) -> None:
    assert_measured(measured, lambda share: 0.9 < share < 1.01)


def total(sandbox: Sandbox) -> float:
    return sum(measured_together([sandbox.start_python(compared, CUDA_DEVICE_SM_LIMIT="40") for _ in range(2)]))


@pytest.mark.real_time(measure=total)
def test_two_processes_share_one_limit(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda total: 0.33 < total < 0.47)


def waiting() -> None:
    """Wait for each launch: so the program leaves the GPU to the other one now and then."""
    d, k = started()
    compare(d, k, lambda: (d.launch(k), d.synchronize()))


def parts_of_processes(sandbox: Sandbox, other: Program) -> list[float]:
    return measured_together(
        [sandbox.start_python(program, CUDA_DEVICE_SM_LIMIT="80") for program in (compared, other)]
    )


@pytest.mark.real_time(measure=parts_of_processes)
@pytest.mark.parametrize(
    ("other", "least", "together"),
    [(compared, 0.8, 0.7), (waiting, 0.25, 0.5)],  # the GPU switches to one that waits for each launch, and back
    ids=["alike", "waiting for each launch"],
)
def test_two_processes_get_parts_of_one_limit(
    measured: Callable[[], list[float]], other: Program, least: float, together: float
) -> None:
    assert_measured(measured, lambda parts: min(parts) > least * max(parts) and together < sum(parts) < 0.9)


def poll() -> None:
    """Wait so that nobody sees it, then do other work: what a step has done is measured when the next one begins."""
    d, k = started()

    def step() -> None:
        for _ in range(5):
            d.launch(k)
        while not d.stream_is_done():
            time.sleep(2e-4)
        time.sleep(5e-3)

    print("ready", flush=True)
    input()
    work(d, 0.5, step)
    print(work(d, 2, step, 5 * KERNEL_S), flush=True)
    while True:
        step()


def total_of_polling(sandbox: Sandbox) -> float:
    return sum(measured_together([sandbox.start_python(poll, CUDA_DEVICE_SM_LIMIT="40") for _ in range(2)]))


@pytest.mark.real_time(measure=total_of_polling)
def test_two_processes_that_poll_share_one_limit(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda total: 0.33 < total < 0.47)


def share_by_an_unreadable_value(sandbox: Sandbox) -> float:
    return float(sandbox.python(launching("synchronised"), CUDA_DEVICE_SM_LIMIT="fast"))


@pytest.mark.real_time(measure=share_by_an_unreadable_value)
def test_a_value_that_cannot_be_read_is_the_strictest(measured: Callable[[], float]) -> None:
    assert measured() < 0.1


def test_captures_work_under_the_strictest_limit(sandbox: Sandbox) -> None:
    """In each mode, with launches before, inside and after; the library's own questions do not end the capture."""

    def program() -> None:
        d, _ = started()
        k = d.kernel("spin_50us")
        stream = d.stream(STREAM_NON_BLOCKING)
        for mode in (CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED):
            for _ in range(20):
                d.launch(k, stream)
            with d.capture(stream, mode) as graphs:
                for _ in range(2000):
                    d.launch(k, stream)
            executable = d.graph_instantiate(graphs[0])
            d.graph_launch(executable, stream)
            d.launch(k, stream)
            d.stream_synchronize(stream)
        print("captured")

    limits = {"CUDA_DEVICE_SM_LIMIT": "60", "CUDA_DEVICE_MEMORY_LIMIT": "4g"}
    assert sandbox.python(program, **limits) == "captured"


WAITS = ("event", "stream", "copy", "event_query", "stream_query", "context", "legacy", "nothing")


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize("wait", WAITS)
def test_captures_beside_a_thread_that_waits(
    sandbox: Sandbox, compile_c: Callable[..., Path], mode: int, wait: str
) -> None:
    program = compile_c("captures.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    result = sandbox.run([program, "100", str(mode), wait], CUDA_DEVICE_SM_LIMIT="60")
    assert result.stdout == "0\n", result.stderr


def test_streams_and_contexts_may_be_destroyed_under_us(sandbox: Sandbox) -> None:
    def program() -> None:
        d, _ = started()
        k = d.kernel("spin_50us")
        for _ in range(1500):
            stream = d.stream()
            d.launch(k, stream)
            d.stream_destroy(stream)
        for _ in range(5):
            context = d.context_create()
            kernel = d.kernel("spin_50us")
            for _ in range(50):
                d.launch(kernel)
            d.context_destroy(context)
        for _ in range(5):
            d.primary_context()
            d.launch(d.kernel("spin_50us"))
            d.call("cuDevicePrimaryCtxReset_v2", 0)
        print("done")

    assert sandbox.python(program, CUDA_DEVICE_SM_LIMIT="80") == "done"


def shares_by_end_of_context(sandbox: Sandbox) -> dict[str, float]:
    def destroyed() -> None:
        d, _ = started()

        def launch() -> None:
            context = d.context_create()
            d.launch(d.kernel("spin_30ms"))
            d.context_destroy(context)

        print(work(d, 3, launch, 30e-3))

    def refused() -> None:
        d, k = started()
        context = d.primary_context()

        def launch() -> None:
            d.launch(k)
            assert d.result("cuCtxDestroy_v2", context) == "CUDA_ERROR_INVALID_CONTEXT"
            d.synchronize()

        print(work(d, 3, launch))

    programs = {each.__name__: (sys.executable, "-c", text_of(each)) for each in (destroyed, refused)}
    return each_alone(sandbox, programs, CUDA_DEVICE_SM_LIMIT="20")


@pytest.mark.real_time(measure=shares_by_end_of_context)
def test_work_is_charged_until_its_context_is_destroyed_if_it_is(measured: Callable[[], dict[str, float]]) -> None:
    assert_measured(measured, lambda seen: all(0.1 < share < 0.3 for share in seen.values()))


@pytest.mark.real_time
def test_threads(sandbox: Sandbox) -> None:
    """Eight threads, each with streams of its own and the default ones, launch and wait; all end, together limited."""

    def program() -> None:
        d, _ = started()
        context, done = d.primary_context(), []

        def launch_for_2_s() -> None:
            d.set_current(context)
            k, stream, count, end = d.kernel("spin_500us"), d.stream(), 0, time.monotonic() + 2
            while time.monotonic() < end:
                d.launch(k, stream)
                d.launch(k)
                d.launch(k, symbol="cuLaunchKernel_ptsz")
                count += 3
                if count % 30 == 0:
                    d.stream_synchronize(stream)
            done.append(count)

        start = time.monotonic()
        in_threads(launch_for_2_s for _ in range(8))
        d.synchronize()
        print(json.dumps([len(done), time.monotonic() - start]))

    usage = sandbox.folder / "usage-threads"
    limits = {"CUDA_DEVICE_SM_LIMIT": "50", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(usage)}
    finished, took_s = json.loads(sandbox.python(program, **limits))
    readings = read_usage(usage, [sandbox.uuid])
    assert finished == 8 and readings[0].busy_ns < 0.6e9 * took_s, (readings[0], took_s)


def shares_of_containers(sandbox: Sandbox) -> list[float]:
    usages = [{"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / f"usage-{name}")} for name in "ab"]
    return measured_together([sandbox.start_python(compared, CUDA_DEVICE_SM_LIMIT="50", **usage) for usage in usages])


@pytest.mark.real_time(measure=shares_of_containers)
def test_two_containers_have_their_limits(measured: Callable[[], list[float]]) -> None:
    """Limited to 50 each, with kernels that fill the GPU, they get near to it: neither pays for the other."""
    assert_measured(measured, lambda shares: all(0.43 < share < 0.57 for share in shares))


def change_the_limit(sandbox: Sandbox) -> None:
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, Quota(None, 1))]))

    def program() -> None:
        d, k = started()
        while True:
            print(work(d, 1, lambda: d.launch(k)), flush=True)
            input()

    with sandbox.start_python(program, VGPURUN_LIMITS_FILE=str(limits)) as process:
        assert float(process.stdout.readline()) < 0.1
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 80))])

        def share() -> float:
            process.stdin.write("go on\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        assert_measured(share, lambda share: 0.65 < share < 0.9)
        process.kill()


@pytest.mark.real_time(measure=change_the_limit)
def test_the_compute_limit_changes_under_a_running_program(measured: Callable[[], None]) -> None:
    """From next to nothing, with the debt of that, to most of the GPU."""
    measured()


def time_after_no_limit(sandbox: Sandbox) -> float:
    """Work is on the GPU when the limit is taken away, and the program waits for it when there is one again."""
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, Quota(None, 50))]))

    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_190us")
        for _ in range(3):
            d.launch(k)
            d.synchronize()
        for _ in range(2):
            d.launch(k)
        print("open", flush=True)
        input()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            d.launch(k)
        print("waits", flush=True)
        d.call("cuStreamSynchronize", None)
        input()
        began = time.monotonic()
        for _ in range(100):
            d.launch(k)
            d.call("cuStreamSynchronize", None)
        print(time.monotonic() - began, flush=True)

    with sandbox.start_python(program, VGPURUN_LIMITS_FILE=str(limits)) as process:
        for said, percent in (("open", None), ("waits", 30)):
            assert process.stdout.readline() == f"{said}\n"
            limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, percent))])
            process.stdin.write("go on\n")
            process.stdin.flush()
        return float(process.stdout.readline())


@pytest.mark.real_time(measure=time_after_no_limit)
def test_what_was_done_without_a_limit_is_not_charged_to_the_next_one(measured: Callable[[], float]) -> None:
    took_s = measured()
    assert took_s < 1.5, took_s  # if the second is charged, the program waits for most of three first
