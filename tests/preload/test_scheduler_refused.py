"""The scheduler's limiter where channels are out of reach, calls are refused, or the driver does not do as it says."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from governed import GOVERNOR, ask, await_records, configure, free_a_channel_unseen, line, running, threads
from sandbox import MACHINE, Sandbox

from cuda_driver import CudaError, Driver, byref, c_void_p
from support.programs import Program, text_of
from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota

HELD_INSTEAD = "launches are held instead"


SAYING_ALL = {"LIBCUDA_LOG_LEVEL": "4", "CUDA_DEVICE_SM_LIMIT": "20"}


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
        d = Driver.started()
        k = d.kernel("spin_1ms")
        launch_for_a_second(d, k)
        os.closerange(3, 4096)
        launch_for_a_second(d, k)

    assert said(sandbox, program).count(HELD_INSTEAD) == 1


def launching_for_5_s() -> None:
    d = Driver.started()
    k = d.kernel("spin_1ms")
    for _ in range(5):
        launch_for_a_second(d, k)


def launching() -> None:
    d = Driver.started()
    k = d.kernel("spin_1ms")
    print("ready", flush=True)
    while True:
        d.launch(k)


@pytest.mark.slow
@pytest.mark.parametrize("has_neighbour", [False, True], ids=["alone", "beside another"])
def test_work_that_runs_though_it_is_off_is_noticed(sandbox: Sandbox, has_neighbour: bool) -> None:
    configure(sandbox, "channels_stay_off: false")
    with ExitStack() as neighbours:
        if has_neighbour:
            neighbour = neighbours.enter_context(sandbox.start_python(launching))
            neighbours.callback(neighbour.kill)
            assert line(neighbour) == "ready"
        assert f"does not take it off as it is asked to; {HELD_INSTEAD}" in said(sandbox, launching_for_5_s)


def asking_for_an_idle_stream() -> None:
    """Kernels are off mostly meanwhile. On that stream they are refused, or captured."""
    d = Driver.started()
    k, idle = d.kernel("spin_5ms"), d.stream(1)
    for _ in range(200):
        d.launch(k)
    end_s = time.monotonic() + 2
    while time.monotonic() < end_s:
        with suppress(CudaError):
            d.launch(k, idle, grid=(0, 1, 1))
        with d.capture(idle):
            d.launch(k, idle)
        d.stream_synchronize(idle)
        time.sleep(1e-3)


def test_a_kernel_that_never_ran_is_not_taken_for_one_that_runs_though_it_is_off(sandbox: Sandbox) -> None:
    assert HELD_INSTEAD not in said(sandbox, asking_for_an_idle_stream)


def share_of(d: Driver, k: int, seconds: float) -> float:
    """Return what kernels of a millisecond were of the time."""
    done, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        for _ in range(10):
            d.launch(k)
        d.synchronize()
        done += 10
    return done * 1e-3 / (time.monotonic() - began)


def may_not(call: str) -> None:
    """Have the kernel refuse a call to all threads."""
    calls, seccomp = ({"openat": 257, "ioctl": 16}, 317)
    if os.uname().machine != "x86_64":
        calls, seccomp = ({"openat": 56, "ioctl": 29}, 277)
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, calls[call]), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = struct.pack("HxxxxxxN", len(steps), ctypes.addressof(kept := ctypes.create_string_buffer(code)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.syscall(seccomp, 1, 1, program) == 0, kept  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC


@pytest.mark.slow
def test_a_program_that_may_open_nothing_any_more_is_held_by_the_scheduler(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_1ms")
        launch_for_a_second(d, k)
        time.sleep(2)  # has no records any more
        may_not("openat")
        print(share_of(d, k, 3), flush=True)

    result = sandbox.run([sys.executable, "-c", text_of(program)], **SAYING_ALL)
    assert HELD_INSTEAD not in result.stderr
    assert 0.1 < float(result.stdout) < 0.25, "at 20 percent"


def denied_while_off() -> None:
    d = Driver.started()
    d.launch(d.kernel("spin_1ms"))
    d.synchronize()
    print("ready", flush=True)
    input()
    d.launch(d.kernel("spin_1s"))
    print("launched", flush=True)
    input()
    may_not("ioctl")
    print("denied", flush=True)
    os.dup2(1, 2)
    d.synchronize()
    print("done", flush=True)


@pytest.mark.slow
def test_work_that_cannot_be_put_back_is_said(sandbox: Sandbox) -> None:
    usage, quota = sandbox.folder / "usage", Quota(None, 50)
    own = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(usage)}
    with running(sandbox, denied_while_off, quota, **own) as (process, limits):
        ask(process)
        assert line(process) == "launched"
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 50, paused=True))])
        while throttled_s(usage) < 1:
            time.sleep(0.01)
        ask(process)
        assert line(process) == "denied"
        limits_file.write_limits(limits, [(sandbox.uuid, quota)])
        assert any("is off and cannot be put back" in each for each in process.stdout)
        assert process.poll() is None


def throttled_s(usage: Path) -> float:
    return abi.Usage.from_buffer_copy(usage.read_bytes()).devices[0].throttled_ns * 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("is_later", [False, True], ids=["at first", "later"])
def test_while_no_descriptor_is_free_for_its_records_the_scheduler_holds_a_program(
    sandbox: Sandbox, is_later: bool
) -> None:
    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_1ms")
        if is_later:
            launch_for_a_second(d, k)
            time.sleep(2)  # has no records any more
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        taken = []
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        before = share_of(d, k, 2)
        for each in taken:
            os.close(each)
        share_of(d, k, 2)
        after, maps = share_of(d, k, 2), Path("/proc/self/maps").read_text().splitlines()
        records = sum(" r--s " in each and "nvidiactl" in each for each in maps)
        print(before, after, records, GOVERNOR in names_of_threads(), flush=True)

    result = sandbox.run([sys.executable, "-c", text_of(program)], **SAYING_ALL)
    assert HELD_INSTEAD not in result.stderr
    assert "cannot be had, for which a descriptor has to be free" in result.stderr
    before, after, records, is_governed = result.stdout.split()
    assert float(before) < 0.25 and float(after) < 0.25, "at 20 percent"
    assert (records, is_governed) == ("2", "True")


@pytest.mark.slow
def test_switches_that_are_refused_are_noticed(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_1ms")
        d.launch(k)
        d.synchronize()
        time.sleep(1)  # on again
        free_a_channel_unseen()
        for _ in range(5):
            launch_for_a_second(d, k)

    assert f"does not take it off as it is asked to; {HELD_INSTEAD}" in said(sandbox, program)


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
    d = Driver.started()
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
        d = Driver.started()
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


def test_hundreds_of_contexts_that_are_gone_are_in_nobody_s_way(sandbox: Sandbox) -> None:
    (sandbox.folder / "sim.yaml").write_text(SMALL_CONTEXTS)

    def program() -> None:
        d = Driver()
        d.init()
        for context in contexts(d, 240):  # nine objects each
            d.context_destroy(context)
        d.primary_context()
        launch_for_a_second(d, d.kernel("spin_1ms"))
        assert GOVERNOR in names_of_threads()

    assert HELD_INSTEAD not in said(sandbox, program)


OFF_MOSTLY = {**SAYING_ALL, "CUDA_DEVICE_SM_LIMIT": "1"}


def assert_goes_on_held(sandbox: Sandbox, program: Program) -> None:
    result = sandbox.run([sys.executable, "-c", text_of(program)], timeout_s=40, **OFF_MOSTLY)
    assert result.returncode == 0, result.stdout + result.stderr
    assert HELD_INSTEAD in result.stderr


def test_what_is_off_when_its_descriptor_goes_is_put_back_when_that_is_there_again(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
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


@pytest.mark.parametrize("places", [0, 2], ids=["behind it", "in others' places"])
def test_what_is_off_when_there_are_too_many_contexts_is_put_back(sandbox: Sandbox, places: int) -> None:
    """The library notes what comes in the places of what went."""
    (sandbox.folder / "sim.yaml").write_text(SMALL_CONTEXTS)

    def program() -> None:
        d = Driver()
        d.init()
        for context in (made := contexts(d, MOST_CONTEXTS + places))[:places]:
            d.context_destroy(context)
        d.set_current(made[-1])
        d.launch(d.kernel("spin_1s"))
        time.sleep(1)
        contexts(d, places + 1)
        d.set_current(made[-1])
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

        d = Driver.started()
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

    assert sandbox.python(program, CUDA_DEVICE_SM_LIMIT="50") == "5 ENOTTY ENOTTY", "0x2B: the driver's allocations"
