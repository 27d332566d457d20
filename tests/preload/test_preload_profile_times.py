"""The profiler measures for itself: kernels of known length have their own time, whatever else the program does.

A simulated GPU runs one piece of work after the other. A busy machine holds the program up, not the GPU: so a program
launches ahead where it matters how long a kernel took.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from cuda_driver import STREAM_NON_BLOCKING, Driver, c_size_t, c_uint64, c_void_p, ctypes, in_threads
from vgpurun.profiles import summary, words
from vgpurun.profiles.reader import FileProfile, read_profiles

pytestmark = [pytest.mark.slow, pytest.mark.real_time]

MS = 1_000_000
EXACT = 0.05


def check(profile: FileProfile, **launches: int) -> None:
    """Check that these kernels, whose names say how long they take, have their counts and times, and no more."""
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    assert {name: kernel.launches for name, kernel in kernels.items()} == launches
    units = {"us": 1000, "ms": MS}
    for name, count in launches.items():
        length = name.split("_")[1]
        expected_ns = count * int(length[:-2]) * units[length[-2:]]
        assert kernels[name].gpu_ns == pytest.approx(expected_ns, rel=EXACT), name
    check_sums(profile)


def check_sums(profile: FileProfile) -> None:
    """Check that all are at most the time of the run, and those of each stream one after the other."""
    run = summary.summarize([profile])
    spans = list(profile.spans())
    assert sum(kernel.gpu_ns for kernel in profile.kernels) <= run.duration_ns
    assert sum(device.gpu_ns for device in run.devices) <= run.duration_ns
    assert sum(span.own_ns for span in spans) == pytest.approx(
        sum(kernel.gpu_ns for kernel in profile.kernels), abs=len(spans) * 12
    )
    for track in {(span.device, span.stream) for span in spans}:
        of_track = sorted(span for span in spans if (span.device, span.stream) == track)
        assert all(before.start_ns + before.duration_ns <= after.start_ns for before, after in pairwise(of_track))


def test_one_stream(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernels = [d.kernel(f"spin_{length}") for length in ("20us", "1ms", "100us")]
        for _ in range(300):
            for kernel in kernels:
                d.launch(kernel)
        d.synchronize()

    check(sandbox.profile_of(folder, program), spin_20us=300, spin_1ms=300, spin_100us=300)


@pytest.mark.parametrize("first", ["1ms", "20us"])
def test_a_short_kernel_beside_a_long_one(sandbox: Sandbox, folder: Path, first: str) -> None:
    """A kernel waits for the other: that is not its own time."""

    def program() -> None:
        d = Driver.started()
        lengths = sorted(["1ms", "20us"], key=lambda length: length != first)
        kernels = [(d.kernel(f"spin_{length}"), d.stream(STREAM_NON_BLOCKING)) for length in lengths]
        for _ in range(300):
            for kernel, stream in kernels:
                d.launch(kernel, stream)
        d.synchronize()

    check(sandbox.profile_of(folder, program), spin_20us=300, spin_1ms=300)


def test_streams_at_the_same_time_are_counted_once(sandbox: Sandbox, folder: Path) -> None:
    """Eight streams of a tenth of a second each."""

    def program() -> None:
        d = Driver.started()
        kernels = [(d.kernel(f"spin_{i}ms"), d.stream(STREAM_NON_BLOCKING)) for i in range(1, 9)]
        for i in range(20):
            for kernel, stream in kernels[i % 8 :] + kernels[: i % 8]:
                d.launch(kernel, stream)
        d.synchronize()

    profile = sandbox.profile_of(folder, program)
    check(profile, **{f"spin_{i}ms": 20 for i in range(1, 9)})
    assert len({span.stream for span in profile.spans()}) == 8


@pytest.mark.parametrize("default", [True, False], ids=["default stream", "a stream each"])
def test_sixteen_threads(sandbox: Sandbox, folder: Path, default: bool) -> None:
    def program() -> None:
        d = Driver.started()
        context = d.primary_context()
        kernels = [d.kernel(f"spin_{i}ms" if i % 2 else f"spin_{i}00us") for i in range(1, 17)]

        def work(kernel: int) -> None:
            d.set_current(context)
            stream = 0 if default else d.stream(STREAM_NON_BLOCKING)
            for _ in range(20):
                d.launch(kernel, stream)
            d.stream_synchronize(stream)

        in_threads(partial(work, kernel) for kernel in kernels)

    profile = sandbox.profile_of(folder, program)
    check(profile, **{f"spin_{i}ms" if i % 2 else f"spin_{i}00us": 20 for i in range(1, 17)})


def test_streams_of_threads_are_kept_apart(sandbox: Sandbox, folder: Path) -> None:
    """Each thread has a default stream of its own, and all have one handle."""

    def program() -> None:
        d = Driver.started()
        context, kernel = d.primary_context(), d.kernel("spin_1ms")

        def work() -> None:
            d.set_current(context)
            for _ in range(10):
                d.launch(kernel, 0, symbol="cuLaunchKernel_ptsz")
            together.wait()
            d.call("cuStreamSynchronize_ptsz", c_void_p())

        together = threading.Barrier(4)
        in_threads(work for _ in range(4))

    profile = sandbox.profile_of(folder, program)
    check(profile, spin_1ms=40)
    assert len({span.stream for span in profile.spans()}) == 4


def test_a_stream_that_was_destroyed_with_work_in_flight(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernel, other = d.kernel("spin_100us"), d.kernel("spin_1ms")
        for _ in range(10):
            stream = d.stream(STREAM_NON_BLOCKING)
            for _ in range(100):
                d.launch(kernel, stream)
            d.stream_destroy(stream)
        d.launch(other)
        d.synchronize()

    profile = sandbox.profile_of(folder, program)
    check(profile, spin_100us=1000, spin_1ms=1)
    assert sum(span.launches for span in profile.spans() if span.stream == 0) == 1
    assert sum(span.launches for span in profile.spans()) == 1001


def test_contexts_that_are_destroyed_with_work_in_flight(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver()
        d.init()
        for _ in range(5):
            context = d.context_create()
            stream, kernel = d.stream(STREAM_NON_BLOCKING), d.kernel("spin_10ms")
            for _ in range(5):
                d.launch(kernel, stream)
                d.launch(kernel)
            d.context_destroy(context)

    profile = sandbox.profile_of(folder, program)
    [kernel] = profile.kernels
    assert kernel.launches == 50
    assert kernel.gpu_ns >= 500 * MS * (1 - EXACT)  # until the context was seen to be gone, a little later
    check_sums(profile)


def test_what_a_stream_waits_for_is_not_its_kernels(sandbox: Sandbox, folder: Path) -> None:
    """Not the work of another stream, nor a copy."""

    def program() -> None:
        d = Driver.started()
        host, memory = ctypes.create_string_buffer(24 << 20), d.mem_alloc(24 << 20)
        short, long, ahead, behind = d.kernel("spin_2ms"), d.kernel("spin_20ms"), d.stream(1), d.stream(1)
        event = d.event()
        for _ in range(10):
            d.launch(long, ahead)
            d.event_record(event, ahead)
            d.launch(short, behind)
            d.stream_wait_event(behind, event)
            d.launch(short, behind)
            d.call("cuMemcpyHtoDAsync_v2", c_uint64(memory), host, c_size_t(24 << 20), c_void_p(behind))
            d.launch(short, behind)
        d.synchronize()

    check(sandbox.profile_of(folder, program), spin_20ms=10, spin_2ms=30)


def test_a_profile_holds_nothing_back(sandbox: Sandbox, folder: Path) -> None:
    """Nor beside another process of the container, where memory alone is limited."""

    def busy() -> None:
        d = Driver.started()
        kernel = d.kernel("spin_5ms")
        while not select.select([sys.stdin], [], [], 0)[0]:
            d.launch(kernel)
            d.synchronize()
            print("busy")

    def program() -> None:
        d = Driver.started()
        kernel = d.kernel("spin_50ms")
        began = time.monotonic()
        for _ in range(20):
            d.launch(kernel)
        print(time.monotonic() - began)
        d.synchronize()

    other = sandbox.start_python(busy, CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert other.stdout.readline() == "busy\n"
    assert float(sandbox.python(program, PFLOG=str(folder), CUDA_DEVICE_MEMORY_LIMIT="2g")) < 0.3
    other.communicate("\n", timeout=60)
    [profile] = read_profiles(folder)
    assert not list(profile.waits())


def test_what_is_captured_counts_when_its_graph_is_launched(sandbox: Sandbox, folder: Path) -> None:
    """A capture begins while the stream has launches that nobody has marked yet."""

    def program() -> None:
        d = Driver.started()
        kernel, stream, other = d.kernel("spin_50us"), d.stream(STREAM_NON_BLOCKING), d.stream(STREAM_NON_BLOCKING)
        event = d.event()
        for i in range(200):
            d.launch(kernel, stream)
            d.begin_capture(stream, i % 3)
            d.launch(kernel, stream)
            d.event_record(event, stream)
            d.stream_wait_event(other, event)
            d.launch(kernel, other)
            d.event_record(event, other)
            d.stream_wait_event(stream, event)
            graph = d.end_capture(stream)
            executable = d.graph_instantiate(graph)
            d.graph_launch(executable, stream)
            d.launch(kernel, other)
            d.stream_synchronize(stream)
            d.stream_synchronize(other)

    profile = sandbox.profile_of(folder, program)
    kernels = {kernel.name: (kernel.launches, kernel.gpu_ns) for kernel in profile.kernels}
    assert {name: launches for name, (launches, _) in kernels.items()} == {"spin_50us": 400, "(graphs)": 200}
    check_sums(profile)


@pytest.mark.parametrize("burst", [1, 3, 40])
@pytest.mark.parametrize("pause_s", [0.0001, 0.01])
def test_pauses_are_not_the_kernels(sandbox: Sandbox, folder: Path, burst: int, pause_s: float) -> None:
    """The program launches, goes on elsewhere and comes back."""

    def program() -> None:
        d = Driver.started()
        kernels = [d.kernel(f"spin_{length}") for length in ("200us", "300us")]
        for _ in range(40):
            for kernel in kernels:
                for _ in range(burst):
                    d.launch(kernel)
                time.sleep(pause_s)
        time.sleep(0.3)

    check(sandbox.profile_of(folder, program), spin_200us=40 * burst, spin_300us=40 * burst)


@pytest.mark.parametrize("percent", [20, 50])
def test_what_a_limit_takes_off_the_gpu_has_none_of_that_time(sandbox: Sandbox, folder: Path, percent: int) -> None:
    def program() -> None:
        d = Driver.started()
        kernels = [d.kernel("spin_1ms"), d.kernel("spin_100ms")]
        for _ in range(5):
            for kernel in kernels:
                d.launch(kernel)
        d.synchronize()

    profile = sandbox.profile_of(folder, program, CUDA_DEVICE_SM_LIMIT=str(percent))
    check(profile, spin_1ms=5, spin_100ms=5)
    assert sum(wait.duration_ns for wait in profile.waits()) > 400 * MS


def test_an_end_with_work_in_flight(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernel = d.kernel("spin_10ms")
        for _ in range(50):
            d.launch(kernel)
        time.sleep(0.1)

    check_sums(sandbox.profile_of(folder, program))


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize("wait", ["event", "stream", "copy", "event_query", "stream_query", "context", "legacy"])
def test_no_capture_is_invalidated(
    sandbox: Sandbox, folder: Path, compile_c: Callable[..., Path], mode: int, wait: str
) -> None:
    """A thread captures, launches and launches the graph; another one launches and waits meanwhile."""
    program = compile_c("captures.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    result = sandbox.run([program, "100", str(mode), wait], PFLOG=str(folder))
    assert result.stdout == "0\n", result.stderr
    [profile] = read_profiles(folder)
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    assert kernels["(graphs)"].launches == kernels["spin_100us"].launches == 100
    check_sums(profile)


def test_a_stream_that_its_thread_has_left(sandbox: Sandbox, folder: Path) -> None:
    """Nobody marks what it launched last; others are alone on the GPU soon, and need few markers then."""

    def program() -> None:
        d = Driver.started()
        context, kernel, other = d.primary_context(), d.kernel("spin_100us"), d.kernel("spin_50us")

        def work() -> None:
            d.set_current(context)
            stream = d.stream(STREAM_NON_BLOCKING)
            for _ in range(30):
                d.launch(kernel, stream)
                d.stream_synchronize(stream)
            d.launch(kernel, stream)

        in_threads([work])
        stream = d.stream(STREAM_NON_BLOCKING)
        for _ in range(10):
            time.sleep(0.05)
            for _ in range(100):
                d.launch(other, stream)
            d.stream_synchronize(stream)

    profile = sandbox.profile_of(folder, program)
    check(profile, spin_100us=31, spin_50us=1000)
    assert max(span.launches for span in profile.spans()) > 5


def test_launches_that_fail_are_none(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernel = d.kernel("spin_100us")
        for _ in range(100):
            d.launch(kernel)
            assert d.result("cuLaunchKernel", kernel, 1, 1, 1, 2048, 1, 1, 0, None, None, None) != "CUDA_SUCCESS"
            assert d.result("cuLaunchKernel", 12345, 1, 1, 1, 1, 1, 1, 0, None, None, None) != "CUDA_SUCCESS"
        d.synchronize()

    profile = sandbox.profile_of(folder, program)
    [total] = [total for total in profile.totals if total.api == "cuLaunchKernel"]
    assert (total.calls, total.failed) == (300, 200)
    check(profile, spin_100us=100)


def test_threads_that_come_and_go(sandbox: Sandbox, folder: Path) -> None:
    """Others take over their part of the file, and their streams."""

    def program() -> None:
        d = Driver.started()
        context, kernel = d.primary_context(), d.kernel("spin_100us")

        def work() -> None:
            d.set_current(context)
            for _ in range(20):
                d.launch(kernel, symbol="cuLaunchKernel_ptsz")

        for _ in range(100):
            in_threads([work])
        d.synchronize()

    profile = sandbox.profile_of(folder, program, VGPURUN_PROFILE_SIZE="4m")
    assert profile.dropped > 0
    [kernel] = profile.kernels
    assert kernel.launches == 2000
    assert kernel.gpu_ns == pytest.approx(200 * MS, rel=EXACT)


def test_a_fork_amid_work(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernel = d.kernel("spin_1ms")
        for _ in range(50):
            d.launch(kernel)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        for _ in range(50):
            d.launch(kernel)
        d.synchronize()

    check(sandbox.profile_of(folder, program), spin_1ms=100)


def test_a_killed_process_keeps_what_was_measured(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernels = [(d.kernel(f"spin_{i}ms"), d.stream(STREAM_NON_BLOCKING)) for i in (1, 2)]
        for _ in range(20):
            for kernel, stream in kernels:
                d.launch(kernel, stream)
        d.synchronize()
        print("done")
        for _ in range(100):
            d.launch(*kernels[0])
        print("launched")
        sys.stdin.readline()

    process = sandbox.start_python(program, PFLOG=str(folder))
    assert [process.stdout.readline() for _ in range(2)] == ["done\n", "launched\n"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    [profile] = read_profiles(folder)
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    assert (kernels["spin_1ms"].launches, kernels["spin_2ms"].launches) == (120, 20)
    assert kernels["spin_2ms"].gpu_ns == pytest.approx(40 * MS, rel=EXACT)
    assert kernels["spin_1ms"].gpu_ns >= 20 * MS * (1 - EXACT)


def test_no_launch_waits_until_others_pause(sandbox: Sandbox, folder: Path, compile_c: Callable[..., Path]) -> None:
    """A thread that collects what others have launched leaves the rest to the next launch."""
    program = compile_c("longest_launch.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    result = sandbox.run([program, "4"], PFLOG=str(folder))
    longest_ms, launches = map(int, result.stdout.split())
    assert longest_ms < 500
    [profile] = read_profiles(folder)
    assert {kernel.name: kernel.launches for kernel in profile.kernels} == {"spin_1us": launches}


def test_kernels_for_which_there_is_no_room(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        module = d.module()
        for i in range(4200):
            d.launch(d.kernel(f"{i}_spin_10us", module))
        d.synchronize()

    profile = sandbox.profile_of(folder, program)
    launches = {kernel.name: kernel.launches for kernel in profile.kernels}
    assert (len(launches), launches["(other kernels)"]) == (4095, 106)
    [notice] = [each for each in words.notices(summary.summarize([profile])) if "(other kernels)" in each]
    assert notice == (
        "A profile has room for the names of 4,094 kernels: 106 launches of others are listed together as "
        "(other kernels)."
    )
