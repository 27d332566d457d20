"""Launches of one kernel, one right after the other, share a record; what is counted is exact all the same."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from sandbox import Sandbox

from cuda_driver import STREAM_NON_BLOCKING, Driver, c_uint, c_void_p
from support import assert_measured
from support.programs import Program
from vgpurun.profiles import layout
from vgpurun.profiles.reader import FileProfile, read_profiles

CLOCK_BACK_NS = 1000  # lib/src/base/clock.h

pytestmark = pytest.mark.real_time  # launches share a record where they follow each other fast enough


def started() -> Driver:
    d = Driver()
    d.start()
    return d


def launch(d: Driver, kernel: int, count: int, stream: int = 0, symbol: str = "cuLaunchKernel") -> None:
    """Launch without Python's own time, so that launches come as close together as those of a C program."""
    function, parameters = d.function(symbol), (c_void_p * 1)()
    arguments = (c_void_p(kernel), *[c_uint(1)] * 6, c_uint(0), c_void_p(stream), parameters, c_void_p())
    for _ in range(count):
        assert function(*arguments) == 0


def profile_of(sandbox: Sandbox, folder: Path, program: Program, **limits: str) -> FileProfile:
    sandbox.python(program, PFLOG=str(folder), **limits)
    [profile] = read_profiles(folder)
    return profile


def launch_runs(profile: FileProfile) -> int:
    """Records that stand for several launches."""
    return sum(1 for _ in profile._records(layout.RUN))


def counted(profile: FileProfile) -> dict[str, int]:
    return {kernel.name: kernel.launches for kernel in profile.kernels}


def check_calls(profile: FileProfile, launches: int) -> None:
    """That many are in the totals, and among the calls, in order and within the time of the program."""
    [total] = [total for total in profile.totals if total.api == "cuLaunchKernel"]
    calls = [call for call in profile.calls() if call.api == "cuLaunchKernel"]
    assert total.calls == len(calls) == launches
    assert sum(call.duration_ns for call in calls) == pytest.approx(total.duration_ns, abs=launches)
    assert total.duration_ns / launches <= total.longest_ns <= total.duration_ns
    for thread in {call.thread for call in calls}:
        starts = [call.start_ns for call in calls if call.thread == thread]
        assert all(after >= before - CLOCK_BACK_NS for before, after in pairwise(starts))
        assert profile.started_ns < starts[0] < starts[-1] < profile.last_ns


def test_a_program_that_only_launches(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        launch(d, d.kernel("spin_1us"), 5000)
        d.synchronize()

    profile = profile_of(sandbox, folder, program)
    assert counted(profile) == {"spin_1us": 5000}
    check_calls(profile, 5000)
    assert sum(span.launches for span in profile.spans()) == 5000
    assert 5000 / layout.RUN_LAUNCHES / 2 < launch_runs(profile) < 1000


def test_runs_end_with_another_kernel_stream_or_function(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        a, b, other = d.kernel("spin_1us"), d.kernel("spin_2us"), d.stream(STREAM_NON_BLOCKING)
        for _ in range(50):
            launch(d, a, 9)
            launch(d, b, 8)
            launch(d, b, 7, other)
            launch(d, b, 6, other, "cuLaunchKernel_ptsz")
        d.synchronize()

    profile = profile_of(sandbox, folder, program)
    assert counted(profile) == {"spin_1us": 450, "spin_2us": 1050}
    check_calls(profile, 1200)
    assert {total.api: total.calls for total in profile.totals}["cuLaunchKernel_ptsz"] == 300
    assert sum(span.launches for span in profile.spans()) == 1500
    assert launch_runs(profile) > 100


def test_other_calls_come_in_order(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        a = d.kernel("spin_1us")
        launch(d, a, 40)
        for _ in range(20):
            launch(d, a, 5)
            d.mem_alloc(4096)
        d.synchronize()

    profile = profile_of(sandbox, folder, program)
    calls = [call.api for call in profile.calls() if call.api in ("cuLaunchKernel", "cuMemAlloc_v2")]
    assert calls == ["cuLaunchKernel"] * 40 + (["cuLaunchKernel"] * 5 + ["cuMemAlloc_v2"]) * 20


def test_no_run_under_a_limit(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        launch(d, d.kernel("spin_1us"), 500)
        d.synchronize()

    profile = profile_of(sandbox, folder, program, CUDA_DEVICE_SM_LIMIT="50")
    check_calls(profile, 500)
    assert launch_runs(profile) == 0


def test_a_launch_that_fails_is_no_launch_of_the_kernel(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        a, function, parameters = d.kernel("spin_1us"), d.function("cuLaunchKernel"), (c_void_p * 1)()
        launch(d, a, 50)
        for _ in range(3):
            no_kernel = c_void_p(12345)
            assert function(no_kernel, *[c_uint(1)] * 6, c_uint(0), c_void_p(0), parameters, c_void_p()) != 0
            launch(d, a, 20)
        d.synchronize()

    profile = profile_of(sandbox, folder, program)
    assert counted(profile)["spin_1us"] == 110
    [total] = [total for total in profile.totals if total.api == "cuLaunchKernel"]
    assert (total.calls, total.failed) == (113, 3)


@pytest.mark.parametrize("launches_before", range(12))
def test_a_launch_that_fails_within_a_run(sandbox: Sandbox, folder: Path, launches_before: int) -> None:
    """Launch the same kernel and grid, whether it is one that is timed or not."""

    def program() -> None:
        d = started()
        a, function, parameters = d.kernel("spin_1us"), d.function("cuLaunchKernel"), (c_void_p * 1)()
        grid, too_many = [c_uint(1)] * 3, [c_uint(2048)] * 3
        for _ in range(9):
            launch(d, a, launches_before + 3)
            assert function(c_void_p(a), *grid, *too_many, c_uint(0), c_void_p(0), parameters, c_void_p()) != 0
        d.synchronize()

    profile = profile_of(sandbox, folder, program)
    launched = 9 * (launches_before + 3)
    assert counted(profile) == {"spin_1us": launched}
    [total] = [total for total in profile.totals if total.api == "cuLaunchKernel"]
    assert (total.calls, total.failed) == (launched + 9, 9)


@pytest.mark.parametrize("burst", [3, 5, 12, 100])
@pytest.mark.parametrize("pause_s", [0.0001, 0.01])
def test_pauses_are_not_the_kernels(sandbox: Sandbox, folder: Path, burst: int, pause_s: float) -> None:
    """Also where nobody looked at the clock when they began or ended.

    A busy machine holds the program up between two launches of a burst, and nobody sees when: so their time is compared
    with that of the bursts and of their work. It may be long for a kernel that is measured, and for those like it then.
    """

    def program() -> None:
        d = started()
        kernel = d.kernel("spin_50us")
        began = time.monotonic_ns()
        launch(d, kernel, 40)
        d.synchronize()
        bursts_ns = time.monotonic_ns() - began
        for _ in range(20):
            began = time.monotonic_ns()
            launch(d, kernel, burst)
            bursts_ns += time.monotonic_ns() - began
            time.sleep(pause_s)
        d.synchronize()
        print(bursts_ns)

    work_ns = (40 + 20 * burst) * 50_000
    runs = itertools.count()

    def measure() -> tuple[int, float]:
        """Return what the kernels took, and the most that they can have taken."""
        of_run = folder / str(next(runs))
        of_run.mkdir()
        bursts_ns = int(sandbox.python(program, PFLOG=str(of_run)))
        [profile] = read_profiles(of_run)
        [kernel] = profile.kernels
        assert kernel.launches == 40 + 20 * burst
        assert launch_runs(profile) > 0 or burst == 3
        return kernel.gpu_ns, 1.2 * work_ns + bursts_ns

    assert_measured(measure, lambda measured: 0.8 * work_ns < measured[0] < measured[1])


def test_threads_that_end_within_a_run(sandbox: Sandbox, folder: Path) -> None:
    """Also once others have taken over the chunks that they had, in a file of the smallest size."""

    def program() -> None:
        d = started()
        a, context = d.kernel("spin_1us"), d.primary_context()

        def work() -> None:
            d.set_current(context)
            launch(d, a, 20)

        launch(d, a, 10)
        for thread in [threading.Thread(target=work) for _ in range(100)]:
            thread.start()
            thread.join()

    profile = profile_of(sandbox, folder, program, VGPURUN_PROFILE_SIZE="4m")
    assert counted(profile) == {"spin_1us": 2010}
    assert {total.api: total.calls for total in profile.totals}["cuLaunchKernel"] == 2010
    assert profile.dropped > 0


def test_a_killed_process_has_all_launches(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        launch(d, d.kernel("spin_1us"), 77)
        print("done")
        sys.stdin.readline()

    process = sandbox.start_python(program, PFLOG=str(folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    [profile] = read_profiles(folder)
    assert profile.ended_ns is None
    assert counted(profile) == {"spin_1us": 77}
    assert Counter(call.api for call in profile.calls())["cuLaunchKernel"] == 77
    assert {total.api: total.calls for total in profile.totals}["cuLaunchKernel"] == 77


def test_a_forked_child_does_not_go_on_with_a_run(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = started()
        a = d.kernel("spin_1us")
        launch(d, a, 50)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        launch(d, a, 50)
        d.synchronize()

    profile = profile_of(sandbox, folder, program)
    assert counted(profile) == {"spin_1us": 100}
    check_calls(profile, 100)
