"""The limits that the GPU's own scheduler holds: no launch waits, and work is taken off the GPU in the middle of a
kernel.

Shares are of the simulated GPU, which preempts and counts as the driver on a card does (tests/sim/test_channels.py).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sandbox import MACHINE, Sandbox, without_scheduler
from together import each_alone, measured_together

from cuda_driver import Driver, byref, c_void_p
from support import assert_measured, go_on_together
from support.programs import Program, text_of
from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.policies import Priority
from vgpurun.limits.quota import Quota
from vgpurun.profiles.reader import read_profiles

KERNELS = {"spin_1ms": 1e-3, "spin_100ms": 0.1, "spin_1s": 1.0}
GOVERNOR = "vgpu-governor"
ASKED = {"VGPURUN_SCHEDULER": "1"}
POINTS = 2.0


def flat_out(d: Driver, k: int, kernel_s: float, seconds: float) -> float:
    """Keep kernels for 50 ms in flight, and two at least.

    Return what they were of the time up to the end of the last one.
    """
    events, done, began = [], 0, time.monotonic()
    while True:
        d.launch(k)
        events.append(d.event())
        d.event_record(events[-1])
        if len(events) > max(1, int(50e-3 / kernel_s)):
            d.event_synchronize(events.pop(0))
            done += 1
        passed_s = time.monotonic() - began
        if done and passed_s > seconds:
            return done * kernel_s / passed_s


def alone(kernel: str) -> Program:
    def program() -> None:
        d = Driver()
        d.start()
        print(100 * flat_out(d, d.kernel(kernel), KERNELS[kernel], 4), flush=True)
        os._exit(0)

    return program


def shares_alone(sandbox: Sandbox, percent: int) -> dict[str, float]:
    programs = {kernel: (sys.executable, "-c", text_of(alone(kernel))) for kernel in KERNELS}
    return each_alone(sandbox, programs, **ASKED, CUDA_DEVICE_SM_LIMIT=str(percent))


@pytest.mark.real_time(measure=shares_alone)
@pytest.mark.parametrize("percent", [20, 50])
def test_kernels_of_any_length_are_held(measured: Callable[[], dict[str, float]], percent: int) -> None:
    assert_measured(measured, lambda shares: all(abs(share - percent) < POINTS for share in shares.values()))


def beside(kernel: str) -> Program:
    def program() -> None:
        d = Driver()
        d.start()
        k = d.kernel(kernel)
        print("ready", flush=True)
        input()
        flat_out(d, k, KERNELS[kernel], 0.5)
        print(100 * flat_out(d, k, KERNELS[kernel], 3), flush=True)
        flat_out(d, k, KERNELS[kernel], 60)

    return program


@dataclass(frozen=True)
class Tenants:
    """Two programs, their limits, how many containers they are in, and what each is to have in percent."""

    kernels: tuple[str, str]
    limits: tuple[int, int]
    containers: int
    due: tuple[int, int]


TENANTS = [
    Tenants(("spin_100ms", "spin_1ms"), (30, 70), 2, (30, 70)),
    Tenants(("spin_1ms", "spin_1ms"), (30, 50), 2, (30, 50)),
    Tenants(("spin_1ms", "spin_1ms"), (40, 40), 1, (20, 20)),
]


def shares_of_tenants(busy_gpu: Sandbox, tenants: Tenants) -> list[float]:
    return measured_together(
        [
            busy_gpu.start_python(
                beside(kernel),
                **ASKED,
                CUDA_DEVICE_SM_LIMIT=str(percent),
                CUDA_DEVICE_MEMORY_SHARED_CACHE=str(busy_gpu.folder / f"usage{number % tenants.containers}"),
            )
            for number, (kernel, percent) in enumerate(zip(tenants.kernels, tenants.limits, strict=True))
        ]
    )


@pytest.mark.real_time(measure=shares_of_tenants)
@pytest.mark.parametrize("tenants", TENANTS, ids=["long beside short", "short beside short", "of one container"])
def test_tenants_have_their_limits(measured: Callable[[], list[float]], tenants: Tenants) -> None:
    assert_measured(
        measured, lambda had: all(-4 < share - part < POINTS for share, part in zip(had, tenants.due, strict=True))
    )


def thinking(d: Driver, k: int, kernel_s: float, seconds: float) -> float:
    """Launch, wait and think, so that the GPU has work for 45 % of the time; return what that was of the time."""
    done, began = 0, time.monotonic()
    while (passed_s := time.monotonic() - began) < seconds:
        d.launch(k)
        d.synchronize()
        done += 1
        time.sleep(kernel_s * 55 / 45)
    return done * kernel_s / passed_s


def host_bound(sandbox: Sandbox) -> list[float]:
    def program() -> None:
        d = Driver()
        d.start()
        print(100 * thinking(d, d.kernel("spin_50ms"), 50e-3, 4))

    text = (sys.executable, "-c", text_of(program))
    return [each_alone(sandbox, {"": text}, **ASKED, CUDA_DEVICE_SM_LIMIT=str(percent))[""] for percent in (99, 60, 25)]


@pytest.mark.real_time(measure=host_bound)
def test_a_program_that_waits_for_its_host_pays_for_its_kernels_alone(measured: Callable[[], list[float]]) -> None:
    def holds(shares: list[float]) -> bool:
        free, above, below = shares
        return free > 40 and above > 0.97 * free and 25 - 2 * POINTS < below < 25 + POINTS

    assert_measured(measured, holds)


# ---- one program under a limits file, and what it is in the middle of


@contextmanager
def running(
    sandbox: Sandbox, program: Program, quota: Quota, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a program that prints `ready`; yield it and its limits file."""
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
    with sandbox.start_python(program, VGPURUN_LIMITS_FILE=str(limits), **{**ASKED, **variables}) as process:
        try:
            assert line(process) == "ready"
            yield process, limits
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def threads(pid: int) -> dict[str, Path]:
    return {(task / "comm").read_text().strip(): task for task in Path(f"/proc/{pid}/task").iterdir()}


def second_long() -> None:
    """Launch a kernel of a second, and print when it ended after how many milliseconds of waiting."""
    d = Driver()
    d.start()
    k = d.kernel("spin_1s")
    d.launch(d.kernel("spin_1ms"))
    d.synchronize()
    print("ready", flush=True)
    while True:
        input()
        began = time.monotonic()
        d.launch(k)
        print(f"{time.monotonic() - began}", flush=True)
        d.synchronize()
        print(f"{time.monotonic() - began}", flush=True)


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_pause_holds_in_the_middle_of_a_kernel(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 90)) as (process, limits):
        ask(process)
        assert float(line(process)) < 0.5, "the launch was held"
        time.sleep(0.2)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90, paused=True))])
        time.sleep(2)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90))])
        assert 2.9 < float(line(process)) < 5


def test_a_new_limit_holds_in_the_middle_of_a_kernel(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 10)) as (process, limits):
        ask(process)
        line(process)
        time.sleep(1)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90))])
        assert 1.8 < float(line(process)) < 3.5, "at 10 percent it would have taken ten seconds"


def forking() -> None:
    """Fork while off: the child uses the GPU as any program that has just begun."""
    d = Driver()
    d.start()
    k = d.kernel("spin_100ms")
    print("ready", flush=True)
    for _ in range(20):
        d.launch(k)
    time.sleep(0.3)  # at 5 percent most of it is spent off
    print(Path("/proc/self/maps").read_text().count(" r--s "), flush=True)
    child = os.fork()
    if child == 0:
        names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
        print(json.dumps([names, Path("/proc/self/maps").read_text().count(" r--s ")]), flush=True)
        os.execv(sys.executable, [sys.executable, "-c", "print('went on', flush=True)"])
    os.waitpid(child, 0)
    began = time.monotonic()
    d.synchronize()
    print(f"{time.monotonic() - began}", flush=True)


def test_a_child_has_no_governor_and_no_records_of_its_parent(sandbox: Sandbox) -> None:
    with running(sandbox, forking, Quota(None, 20)) as (process, _):
        before = int(line(process))
        names, after = json.loads(line(process))
        assert GOVERNOR not in names
        assert after == before - 2, "the header of the records, and the records"
        assert line(process) == "went on"
        assert 5 < float(line(process)) < 15, "2 s of work at 20 percent"


def test_a_program_that_is_killed_while_off_leaves_nothing(sandbox: Sandbox) -> None:
    with running(sandbox, forking, Quota(None, 5)) as (process, limits):
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90))])
    with running(sandbox, second_long, Quota(None, 90)) as (process, _):
        ask(process)
        line(process)
        assert float(line(process)) < 3


def test_a_stopped_program_that_is_off_goes_on_where_it_was(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 50)) as (process, _):
        ask(process)
        line(process)
        time.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        assert 1.4 < float(line(process)) < 4


def idle() -> None:
    d = Driver()
    d.start()
    d.launch(d.kernel("spin_1ms"))
    d.synchronize()
    print("ready", flush=True)
    input()


def await_records(process: subprocess.Popen[str], count: int) -> None:
    """Wait until so many mappings of the driver's control device are there: a header and the records, or none."""
    end_s = time.monotonic() + 30
    maps = Path(f"/proc/{process.pid}/maps")
    while sum(" r--s " in each and "nvidiactl" in each for each in maps.read_text().splitlines()) != count:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_no_records_of_an_idle_program_are_kept(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 90)) as (process, _):
        await_records(process, 0)
        ask(process)
        await_records(process, 2)
        line(process)
        line(process)
        await_records(process, 0)


def test_a_governor_sleeps_while_there_is_no_work(sandbox: Sandbox) -> None:
    with running(sandbox, idle, Quota(None, 50)) as (process, _):
        await_records(process, 0)
        status = threads(process.pid)[GOVERNOR] / "status"
        before = [each for each in status.read_text().splitlines() if "ctxt" in each]
        time.sleep(1)
        assert [each for each in status.read_text().splitlines() if "ctxt" in each] == before


def test_a_program_without_a_compute_limit_has_no_governor(sandbox: Sandbox) -> None:
    with running(sandbox, idle, Quota(1 << 30, None)) as (process, _):
        assert GOVERNOR not in threads(process.pid)


def test_a_program_that_does_not_ask_for_it_has_no_governor(sandbox: Sandbox) -> None:
    with running(sandbox, idle, Quota(None, 50), VGPURUN_SCHEDULER="0") as (process, _):
        assert GOVERNOR not in threads(process.pid)


def test_launches_are_held_on_a_mig_instance(sandbox: Sandbox) -> None:
    instance = f"MIG{sandbox.uuid.removeprefix('GPU')}"
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"devices:\n- uuid: {instance}\n  mig_gpu: 1\n  memory_mib: 8192\n")
    with running(Sandbox(sandbox.folder, sandbox.environment, instance), idle, Quota(None, 50)) as (process, _):
        assert GOVERNOR not in threads(process.pid)


def share_where_launches_are_held(busy_gpu: Sandbox) -> float:
    without_scheduler(busy_gpu)
    return float(busy_gpu.python(alone("spin_1ms"), **ASKED, CUDA_DEVICE_SM_LIMIT="20"))


@pytest.mark.real_time(measure=share_where_launches_are_held)
def test_where_the_control_device_cannot_be_had_launches_are_held(
    measured: Callable[[], float], sandbox: Sandbox
) -> None:
    without_scheduler(sandbox)
    with running(sandbox, idle, Quota(None, 50)) as (process, _):
        assert GOVERNOR not in threads(process.pid)
    assert_measured(measured, lambda share: abs(share - 20) < POINTS)


# ---- periods, slices, and many processes


def configure(sandbox: Sandbox, line: str) -> None:
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"{line}\n{config.read_text()}")


def test_where_calls_take_long_there_are_fewer(sandbox: Sandbox, tmp_path: Path) -> None:
    """A call takes 5 ms: one every 40 ms would be an eighth of the time."""
    configure(sandbox, "channels_off_us: 5000")
    folder = tmp_path / "profile"
    folder.mkdir()

    def program() -> None:
        d = Driver()
        d.start()
        k = d.kernel("spin_100ms")
        for _ in range(20):
            d.launch(k)
        d.synchronize()

    sandbox.python(program, PFLOG=str(folder), **ASKED, CUDA_DEVICE_SM_LIMIT="50")
    [profile] = read_profiles(folder)
    assert 5 < len(list(profile.waits())) < 50, "in 4 s, and not a hundred of them"


GET_TIMESLICE, GET_CONTEXT_ID = (0xA06C0104, 8), (0xA06F0113, 4)  # NVA06C_CTRL_CMD_GET_TIMESLICE and so on, in bytes


def own_control() -> tuple[int, int]:
    """Return the descriptor by which this process's driver makes its calls, and the driver's client."""
    own = next(fd for fd in os.listdir("/proc/self/fd") if "nvidiactl" in os.readlink(f"/proc/self/fd/{fd}"))
    return int(own), int.from_bytes(os.pread(int(own), 4, 16), "little")


def first_answer(command: int, size: int) -> tuple[int, int]:
    """Ask the driver about each of this process's objects; return the first that answers, and its answer."""
    (own, client), answer, status = own_control(), ctypes.c_uint64(), -1
    for handle in range(0x5C000001, 0x5C000010):
        call = (ctypes.c_uint32 * 8)(client, handle, command, 0, 0, 0, size, 0)
        ctypes.c_uint64.from_buffer(call, 16).value = ctypes.addressof(answer)
        ctypes.CDLL("libcuda.so.1").ioctl(own, ctypes.c_ulong(0xC020462A), call)
        status = call[7]
        if status == 0:
            return handle, answer.value
    raise AssertionError(f"no object answers: {status:#x}")


def free_a_channel_unseen() -> None:
    """The library, which has not seen that, goes on to switch it with the others."""
    own, client = own_control()
    call = (ctypes.c_uint32 * 4)(client, 0, first_answer(*GET_CONTEXT_ID)[0], 0)
    ctypes.CDLL("libcuda.so.1").ioctl(own, ctypes.c_ulong(0xC0104629), call)
    assert call[3] == 0


def telling_its_slice() -> None:
    def work() -> None:
        other = Driver()
        other.set_current(context)
        while True:
            other.launch(k)
            other.synchronize()

    d = Driver()
    d.init()
    context, k = d.primary_context(), d.kernel("spin_2ms")
    d.launch(k)
    threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    while True:
        input()
        print(first_answer(*GET_TIMESLICE)[1], flush=True)


def await_slice(process: subprocess.Popen[str], slice_us: int) -> None:
    seen, end_s = set(), time.monotonic() + 30
    while slice_us not in seen:
        assert time.monotonic() < end_s, seen
        ask(process)
        seen.add(int(line(process)))


def test_slices_follow_limits_processes_and_priorities(sandbox: Sandbox) -> None:
    with ExitStack() as stack:

        def started(name: str, quota: Quota) -> subprocess.Popen[str]:
            limits = sandbox.folder / f"limits of {name}"
            limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
            files = {"VGPURUN_LIMITS_FILE": str(limits), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / name)}
            process = stack.enter_context(sandbox.start_python(telling_its_slice, **ASKED, **files))
            stack.callback(process.kill)
            assert line(process) == "ready"
            return process

        low = Quota(None, 60, priority=Priority.LOW)
        first = started("low", low)
        await_slice(first, 12000)
        second = started("low", low)
        await_slice(first, 6000)
        await_slice(second, 6000)
        high = started("high", Quota(None, 30))
        await_slice(first, 150)
        await_slice(second, 150)
        await_slice(high, 6000)
        high.kill()
        second.kill()
        await_slice(first, 12000)


MANY = 24


@pytest.mark.slow
@pytest.mark.parametrize("containers", [1, MANY])
def test_many_processes_have_no_more_than_their_limits(sandbox: Sandbox, containers: int) -> None:
    """A busy machine makes it longer, never shorter."""
    configure(sandbox, "context_switch_us: 0")
    (sandbox.folder / "sim.yaml").write_text((sandbox.folder / "sim.yaml").read_text().replace("8192", "81920"))
    percent = 48 // containers

    def program() -> None:
        d = Driver()
        d.start()
        k, short = d.kernel("spin_5ms"), d.kernel("spin_2us")
        print("ready", flush=True)
        input()
        began = time.monotonic()
        for _ in range(40):
            d.launch(k)
        d.synchronize()
        for _ in range(5):  # once what is owed has been paid
            time.sleep(20e-3)
            d.launch(short)
            d.synchronize()
        print(began, time.monotonic(), flush=True)

    with ExitStack() as stack:
        processes = []
        for number in range(MANY):
            usage = str(sandbox.folder / f"usage{number % containers}")
            variables = {**ASKED, "CUDA_DEVICE_SM_LIMIT": str(percent), "CUDA_DEVICE_MEMORY_SHARED_CACHE": usage}
            processes.append(stack.enter_context(sandbox.start_python(program, **variables)))
            stack.callback(processes[-1].kill)
        go_on_together(processes)
        times = [tuple(map(float, line(process).split())) for process in processes]
    spans = [end - began for began, end in times]
    if containers == 1:
        spans = [max(end for _, end in times) - min(began for began, _ in times)]
    work_s = MANY // containers * 40 * 5e-3 - 20e-3  # which accrue beforehand
    assert min(spans) > 0.95 * work_s / (percent / 100)


# ---- channels that are out of reach, and lists that are refused

HELD_INSTEAD = "launches are held instead"
SAYING_ALL = {**ASKED, "LIBCUDA_LOG_LEVEL": "4", "CUDA_DEVICE_SM_LIMIT": "20"}


def names_of_threads() -> list[str]:
    return [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]


def said(sandbox: Sandbox, program: Program) -> str:
    """Return what the library says while a program runs, which must end well."""
    result = sandbox.run([sys.executable, "-c", text_of(program)], timeout_s=40, **SAYING_ALL)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stderr


def launch_for_a_second(d: Driver, k: int) -> None:
    end_s = time.monotonic() + 1
    while time.monotonic() < end_s:
        d.launch(k)
        d.synchronize()


def test_a_program_that_closes_all_descriptors_is_held_by_its_launches(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver()
        d.start()
        k = d.kernel("spin_1ms")
        launch_for_a_second(d, k)
        os.closerange(3, 4096)
        launch_for_a_second(d, k)

    assert said(sandbox, program).count(HELD_INSTEAD) == 1


def launching_for_5_s() -> None:
    d = Driver()
    d.start()
    k = d.kernel("spin_1ms")
    for _ in range(5):
        launch_for_a_second(d, k)


def launching() -> None:
    d = Driver()
    d.start()
    k = d.kernel("spin_1ms")
    print("ready", flush=True)
    while True:
        d.launch(k)


@pytest.mark.parametrize("has_neighbour", [False, True], ids=["alone", "beside another"])
def test_work_that_runs_though_it_is_off_is_noticed(sandbox: Sandbox, has_neighbour: bool) -> None:
    configure(sandbox, "channels_stay_off: false")
    with ExitStack() as neighbours:
        if has_neighbour:
            neighbour = neighbours.enter_context(sandbox.start_python(launching))
            neighbours.callback(neighbour.kill)
            assert line(neighbour) == "ready"
        assert f"does not take it off as it is asked to; {HELD_INSTEAD}" in said(sandbox, launching_for_5_s)


def test_switches_that_are_refused_are_noticed(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver()
        d.start()
        k = d.kernel("spin_1ms")
        d.launch(k)
        d.synchronize()
        time.sleep(1)  # it is on
        free_a_channel_unseen()
        for _ in range(5):
            launch_for_a_second(d, k)

    assert f"does not take it off as it is asked to; {HELD_INSTEAD}" in said(sandbox, program)


def test_a_driver_that_never_says_that_nothing_is_left_is_noticed(sandbox: Sandbox) -> None:
    configure(sandbox, "channels_are_idle: false")

    def program() -> None:
        d = Driver()
        d.start()
        k = d.kernel("spin_1ms")
        for _ in range(300):
            d.launch(k)
            d.synchronize()
            time.sleep(20e-3)

    assert f"always says that there is some; {HELD_INSTEAD}" in said(sandbox, program)


@contextmanager
def held(thread: int) -> Iterator[None]:
    """Let a thread of a child do nothing, as ptrace does."""
    ptrace = ctypes.CDLL(None).ptrace
    ptrace.argtypes = [ctypes.c_long] * 4
    assert ptrace(0x4206, thread, 0, 0) == 0  # PTRACE_SEIZE
    assert ptrace(0x4207, thread, 0, 0) == 0  # PTRACE_INTERRUPT
    os.waitpid(thread, 0x40000000)  # __WALL
    try:
        yield
    finally:
        assert ptrace(17, thread, 0, 0) == 0  # PTRACE_DETACH


def ticks_of(thread: Path) -> int:
    """Return how many hundredths of a second a thread has run."""
    fields = (thread / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def leaving_work() -> None:
    d = Driver()
    d.start()
    k = d.kernel("spin_30s")
    d.launch(d.kernel("spin_1ms"))
    d.synchronize()
    print("ready", flush=True)
    input()
    d.launch(k)
    print("launched", flush=True)
    input()


def test_a_governor_that_is_suspended_before_it_has_seen_some_work_sleeps(sandbox: Sandbox) -> None:
    with running(sandbox, leaving_work, Quota(None, 50)) as (process, limits):
        await_records(process, 0)
        governor = threads(process.pid)[GOVERNOR]
        with held(int(governor.name)):
            ask(process)
            assert line(process) == "launched"
            limits_file.set_suspended(limits, abi.SUSPENDED)
        before = ticks_of(governor)
        time.sleep(1)
        assert ticks_of(governor) - before < 5, "of a hundred"


def test_a_governor_that_has_given_up_sleeps(sandbox: Sandbox) -> None:
    """Also where nobody waits for the work that there was."""

    def program() -> None:
        d = Driver()
        d.start()
        k = d.kernel("spin_1ms")
        launch_for_a_second(d, k)
        [governor] = [
            each.parent for each in Path("/proc/self/task").glob("*/comm") if each.read_text().strip() == GOVERNOR
        ]
        os.closerange(3, 4096)
        d.launch(d.kernel("spin_30s"))
        time.sleep(0.5)
        before = ticks_of(governor)
        time.sleep(1)
        print(ticks_of(governor) - before, flush=True)
        os._exit(0)

    result = sandbox.run([sys.executable, "-c", text_of(program)], **SAYING_ALL)
    assert HELD_INSTEAD in result.stderr
    assert int(result.stdout) < 5, "of a hundred"


MOST_CONTEXTS = 64  # whose channels are known
SMALL_CONTEXTS = MACHINE.replace("    memory", "    context_overhead_mib: 16\n    memory")


def contexts(d: Driver, count: int) -> list[int]:
    """Return so many, of which none is current: the simulated driver keeps no more than 64 of those."""
    made = []
    for _ in range(count):
        made.append(d.context_create())
        d.call("cuCtxPopCurrent_v2", byref(c_void_p()))
    return made


@pytest.mark.parametrize("is_later", [False, True], ids=["at first", "later"])
def test_more_contexts_than_can_be_switched_are_held_by_their_launches(sandbox: Sandbox, is_later: bool) -> None:
    (sandbox.folder / "sim.yaml").write_text(SMALL_CONTEXTS)

    def program() -> None:
        d = Driver()
        d.init()
        made = contexts(d, MOST_CONTEXTS + 1 - is_later)
        d.set_current(made[0])
        k = d.kernel("spin_1ms")
        launch_for_a_second(d, k)
        governed = GOVERNOR in names_of_threads()
        made += contexts(d, int(is_later))
        d.set_current(made[0])
        launch_for_a_second(d, k)
        assert governed == is_later and len(made) > MOST_CONTEXTS

    assert said(sandbox, program).count(HELD_INSTEAD) == 1


OFF_MOSTLY = {**SAYING_ALL, "CUDA_DEVICE_SM_LIMIT": "1"}


def assert_goes_on_held(sandbox: Sandbox, program: Program) -> None:
    result = sandbox.run([sys.executable, "-c", text_of(program)], timeout_s=40, **OFF_MOSTLY)
    assert result.returncode == 0, result.stdout + result.stderr
    assert HELD_INSTEAD in result.stderr


def test_what_is_off_when_its_descriptor_goes_is_put_back_when_that_is_there_again(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver()
        d.start()
        d.launch(d.kernel("spin_100ms"))
        time.sleep(1)
        files = [
            int(fd) for fd in os.listdir("/proc/self/fd") if "nvidiactl" in os.path.realpath(f"/proc/self/fd/{fd}")
        ]
        kept = {fd: os.dup(fd) for fd in files}
        for fd in files:
            os.close(fd)
        time.sleep(1)
        for fd in files:
            os.dup2(kept[fd], fd)
        d.synchronize()

    assert_goes_on_held(sandbox, program)


def test_what_is_off_when_there_are_too_many_contexts_is_put_back(sandbox: Sandbox) -> None:
    (sandbox.folder / "sim.yaml").write_text(SMALL_CONTEXTS)

    def program() -> None:
        d = Driver()
        d.init()
        made = contexts(d, MOST_CONTEXTS)
        d.set_current(made[0])
        d.launch(d.kernel("spin_100ms"))
        time.sleep(1)
        contexts(d, 1)
        d.set_current(made[0])
        d.synchronize()

    assert_goes_on_held(sandbox, program)


def test_a_list_that_is_refused_in_part_leaves_nothing_off(sandbox: Sandbox) -> None:
    """More channels than a call takes are switched by two, of which the second is refused while contexts go."""
    (sandbox.folder / "sim.yaml").write_text(SMALL_CONTEXTS)

    def program() -> None:
        def come_and_go() -> None:
            other = Driver()
            while any(launching):
                other.context_destroy(other.context_create())

        d = Driver()
        d.init()
        made, launching = contexts(d, 10), [True]
        d.set_current(made[0])
        k = d.kernel("spin_1ms")
        d.launch(k)
        d.synchronize()
        thread = threading.Thread(target=come_and_go)
        thread.start()
        for _ in range(400):
            d.launch(k)
            d.synchronize()
        launching.clear()
        thread.join()

    assert HELD_INSTEAD not in said(sandbox, program)


@pytest.mark.real_time
def test_contexts_that_come_and_go_at_the_first_launch_keep_nobody_from_it(sandbox: Sandbox) -> None:
    def begin() -> bool:
        """Return whether the GPU's scheduler holds the limit of a process that has just begun."""

        def come_and_go() -> None:
            other = Driver()
            while any(waiting):
                context = other.context_create()
                time.sleep(0.01)
                other.context_destroy(context)

        d = Driver()
        d.start()
        k, waiting = d.kernel("spin_1ms"), [True]
        thread = threading.Thread(target=come_and_go)
        thread.start()
        d.launch(k)
        waiting.clear()
        thread.join()
        return GOVERNOR in names_of_threads()

    def program() -> None:
        for _ in range(8):
            child = os.fork()
            if child == 0:
                os._exit(0 if begin() else 1)
            assert os.waitpid(child, 0)[1] == 0

    said(sandbox, program)


def test_other_calls_of_ioctl_are_passed_on(sandbox: Sandbox) -> None:
    def program() -> None:
        import array
        import errno
        import fcntl
        import termios

        def error(request: int) -> int:
            try:
                return fcntl.ioctl(read, request, bytearray(64)) and 0
            except OSError as refusal:
                return refusal.errno or 0

        read, write = os.pipe()
        os.write(write, b"three")
        size = array.array("i", [0])
        fcntl.ioctl(read, termios.FIONREAD, size)
        print(size[0], errno.errorcode[error(termios.TCGETS)], errno.errorcode[error(0xC0304600 | 0x2B)])

    assert sandbox.python(program, **ASKED, CUDA_DEVICE_SM_LIMIT="50") == "5 ENOTTY ENOTTY", (
        "0x2B: the driver's allocations"
    )
