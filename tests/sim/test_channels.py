"""Channel groups: time slices, preemption, and the control device by which a program's channels are switched.

Devices go on by the clock, however late a program looks, so these tests hold on a busy machine too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated import MIB, Machine, driver, queue, run_a_kernel

from cuda_driver import STREAM_NON_BLOCKING, byref
from support import short_folder

GROUP, CHANNEL, SUBDEVICE = 0xA06C, 0xC86F, 0x2080
SET_TIMESLICE, GET_TIMESLICE, PREEMPT = 0xA06C0103, 0xA06C0104, 0xA06C0105
INVALID_CHANNEL, INVALID_CLIENT, BUSY = 0x21, 0x23, 0x65
FORCE_BUSY_CHECK, IDLE = 3, 2


@pytest.fixture(scope="session")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload, which sees the driver's calls on its control device; each process of tests has its own."""
    library = tmp_path_factory.mktemp("channels") / "channels.so"
    source = Path(__file__).parent / "programs" / "channels.c"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def watched(machine: Machine, watcher: Path) -> Machine:
    machine.environment |= {"LD_PRELOAD": str(watcher), "CHANNELS": str(watcher)}
    return machine


def channels() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["CHANNELS"])


def listed(kind: int) -> list[int]:
    handles = (ctypes.c_uint32 * 64)()
    return handles[: channels().channels_list(kind, handles)]


def switch(off: bool, handles: list[int], device: int = 0) -> int:
    library, array = channels(), (ctypes.c_uint32 * 64)(*handles)
    fd, client = library.channels_device(), ctypes.c_uint32(library.channels_client())
    return library.channels_switch(fd, client, listed(SUBDEVICE)[device], off, array, len(handles))


def free_channel(handle: int) -> None:
    client = ctypes.c_uint32(channels().channels_client()).value
    assert call(0x29, bytearray(struct.pack("=4I", client, 0, handle, 0)), 12) == 0


def busy(handles: list[int], behaviour: int = FORCE_BUSY_CHECK, timeout_us: int = 200) -> int:
    library, array = channels(), (ctypes.c_uint32 * 64)(*handles)
    client = ctypes.c_uint32(library.channels_client())
    return library.channels_busy(library.channels_device(), client, array, len(handles), behaviour, timeout_us)


def control(group: int, command: int, value: int = 0) -> tuple[int, int]:
    library, parameter = channels(), ctypes.c_uint64(value)
    client = ctypes.c_uint32(library.channels_client())
    status = library.channels_control(library.channels_device(), client, group, command, byref(parameter), 8)
    return status, parameter.value


def test_time_slices(watched: Machine) -> None:
    def program() -> None:
        first = driver.context_create()
        a = driver.kernel("spin_5ms")
        second = driver.context_create()
        b = driver.kernel("spin_5ms")
        _, one, other = listed(GROUP)
        assert control(one, GET_TIMESLICE) == (0, 2048)
        assert control(one, SET_TIMESLICE, 6000)[0] == control(other, SET_TIMESLICE, 14000)[0] == 0
        assert control(one, GET_TIMESLICE) == (0, 6000)
        both = listed(CHANNEL)[8:]
        assert len(both) == 16 and switch(True, both) == 0
        driver.set_current(first)
        ends = queue(a, 34)
        driver.set_current(second)
        others = queue(b, 80)
        assert switch(False, both) == 0
        driver.event_synchronize(others[-1])
        cycle_ms = 6 + 14 + 2 * 0.15
        assert abs(driver.event_elapsed_ms(ends[0], ends[30]) - 30 * 5 / 6 * cycle_ms) < cycle_ms
        assert abs(driver.event_elapsed_ms(others[0], others[60]) - 60 * 5 / 14 * cycle_ms) < cycle_ms
        assert abs(driver.event_elapsed_ms(ends[0], others[-1]) - (114 * 5 + 57 * 0.15)) < cycle_ms, (
            "what is left is alone"
        )

    watched.python(program)


@pytest.mark.parametrize("switch_us", [0, 500])
def test_processes_share_by_time_slices(watched: Machine, switch_us: int) -> None:
    watched.configure(f"context_switch_us: {switch_us}\n")

    def program() -> None:
        assert control(listed(GROUP)[0], SET_TIMESLICE, 3000)[0] == 0
        driver.launch(driver.kernel("spin_30s"))
        print("queued")
        sys.stdin.readline()

    neighbour = watched.start_python(program)
    assert neighbour.stdout.readline() == "queued\n"

    def program() -> None:
        ends = queue(driver.kernel("spin_1ms"), 200)
        driver.event_synchronize(ends[-1])
        print(driver.event_elapsed_ms(ends[0], ends[192]))

    cycle_ms = 3 + 2.048 + 2 * switch_us / 1000
    assert abs(float(watched.python(program)) - 192 / 2.048 * cycle_ms) < cycle_ms


def test_a_program_that_runs_dry_gives_its_slice_away(watched: Machine) -> None:
    watched.configure("context_switch_us: 0\n")

    def program() -> None:
        first = driver.context_create()
        a = driver.kernel("spin_1ms")
        driver.context_create()
        b = driver.kernel("spin_1ms")
        for group in listed(GROUP)[1:]:
            control(group, SET_TIMESLICE, 500000)
        both = listed(CHANNEL)[8:]
        switch(True, both)
        ends = queue(b, 50)
        driver.set_current(first)
        began = driver.event()
        driver.event_record(began)
        ends += queue(a, 50)
        switch(False, both)
        driver.event_synchronize(ends[-1])
        driver.event_synchronize(ends[49])
        assert sorted(round(driver.event_elapsed_ms(ends[0], end)) for end in (ends[49], ends[-1])) in (
            [49, 99],
            [-1, 49],
        )

    watched.python(program)


def test_off_and_on_in_the_middle_of_a_kernel(watched: Machine) -> None:
    def program() -> None:
        start, end, own = driver.event(), driver.event(), listed(CHANNEL)
        driver.event_record(start)
        driver.launch(driver.kernel("spin_200ms"))
        driver.event_record(end)
        least_s = most_s = 0.0
        while not driver.event_is_done(end):
            called = time.monotonic()
            assert switch(True, own) == 0
            off = time.monotonic()
            done = driver.event_is_done(end)
            time.sleep(0.01)
            assert driver.event_is_done(end) == done, "it is off"
            on = time.monotonic()
            assert switch(False, own) == 0
            if not done:
                least_s += on - off
                most_s += time.monotonic() - called
            time.sleep(0.01)
        elapsed_ms = driver.event_elapsed_ms(start, end)
        assert 200 + least_s * 1000 - 0.001 <= elapsed_ms <= 200.2 + most_s * 1000, (least_s, most_s, elapsed_ms)
        assert least_s > 0.05

    watched.python(program)


def test_the_driver_counts_how_often_a_channel_was_taken_off(watched: Machine) -> None:
    def program() -> None:
        def runs() -> bool:
            time.sleep(0.05)
            return driver.stream_is_done()

        own, kernel = listed(CHANNEL), driver.kernel("spin_1ms")
        for channels_off in (own, own[3:], own[3:4]):
            assert switch(True, channels_off) == 0
        driver.launch(kernel)
        for channels_on in (own, own):
            assert not runs()
            assert switch(False, channels_on) == 0
        assert not runs(), "a channel is off, once"
        assert switch(False, own[3:4]) == 0
        driver.synchronize()
        for _ in range(3):
            assert switch(False, own) == 0
        assert switch(True, own) == 0
        driver.launch(kernel)
        assert not runs(), "it has been on no more than on"
        assert switch(False, own) == 0
        driver.synchronize()

    watched.python(program)


def test_what_is_freed_is_off_no_more_however_often_it_was_taken_off(watched: Machine) -> None:
    def program() -> None:
        first = driver.context_create()
        own = listed(CHANNEL)[8:]
        for _ in range(3):
            assert switch(True, own) == 0
        free_channel(own[0])
        driver.launch(driver.kernel("spin_1ms"))
        for _ in range(3):
            time.sleep(0.05)
            assert not driver.stream_is_done(), "others are off"
            assert switch(False, own[1:]) == 0
        driver.synchronize()
        for _ in range(3):
            assert switch(True, own[1:]) == 0
        driver.context_destroy(first)
        driver.context_create()
        driver.launch(driver.kernel("spin_1ms"))
        driver.synchronize()

    watched.python(program)


def test_what_goes_on_while_off(watched: Machine) -> None:
    def program() -> None:
        kernel, address = driver.kernel("spin_30s"), driver.mem_alloc(MIB)
        held, free = driver.stream(STREAM_NON_BLOCKING), driver.stream(STREAM_NON_BLOCKING)
        assert switch(True, listed(CHANNEL)) == 0
        driver.launch(kernel, held)
        copy = driver.function("cuMemcpyHtoDAsync_v2")
        assert copy(ctypes.c_uint64(address), bytes(MIB), ctypes.c_size_t(MIB), ctypes.c_void_p(free)) == 0
        driver.stream_synchronize(free)
        driver.mem_free(driver.mem_alloc(100 * MIB))
        assert not driver.stream_is_done(held)
        assert copy(ctypes.c_uint64(address), bytes(16), ctypes.c_size_t(16), ctypes.c_void_p(held)) == 0
        time.sleep(0.01)
        assert not driver.stream_is_done(held), "a copy behind the kernel waits"
        assert busy(listed(CHANNEL)) == BUSY

    watched.python(program)


# ---- records of context switches: an event buffer, and the memory that it is in

MEMORY, EVENT_BUFFER = 0x90CE, 0x90CD
GET_CONTEXT_ID, GET_TIME = 0xA06F0113, 0x20800403
BIND, ENABLE, FLUSH = 0x20801238, 0x90CD0101, 0x90CD0104
BEGINS, ENDS = 6, 7
RECORDS, RECORD_BYTES = 64, 40
HEADER, RING, BUFFER = 0x1000, 0x1001, 0x1002


def ask(object_handle: int, command: int, parameters: bytes) -> bytes:
    """Return the parameters as the driver leaves them."""
    library, array = channels(), ctypes.create_string_buffer(parameters, len(parameters))
    client = ctypes.c_uint32(library.channels_client())
    fd, place = library.channels_device(), array if parameters else None
    assert library.channels_control(fd, client, object_handle, command, place, len(parameters)) == 0
    return array.raw


def call(number: int, request: bytearray, status_at: int) -> int:
    """Make a request of the driver's; return its status."""
    array = (ctypes.c_char * len(request)).from_buffer(request)
    code = 3 << 30 | len(request) << 16 | ord("F") << 8 | number
    assert ctypes.CDLL(None).ioctl(channels().channels_device(), ctypes.c_ulong(code), array) == 0
    return int.from_bytes(request[status_at : status_at + 4], "little")


def make(handle: int, kind: int, parameters: bytes) -> None:
    client, array = ctypes.c_uint32(channels().channels_client()).value, ctypes.create_string_buffer(parameters)
    request = struct.pack("=4I2Q4I", client, client, handle, kind, ctypes.addressof(array), 0, len(parameters), 0, 0, 0)
    assert call(0x2B, bytearray(request), 40) == 0


def mapped(handle: int, size: int) -> mmap.mmap:
    make(handle, MEMORY, struct.pack("=48x2Q2Q48x", 0, 0, size, 0))
    client = ctypes.c_uint32(channels().channels_client()).value
    file = os.open(f"/proc/self/fd/{channels().channels_device()}", os.O_RDWR)
    request = struct.pack("=4I3Q2Ii4x", client, client, handle, 0, 0, size, 0, 0, 1, file)
    assert call(0x4E, bytearray(request), 40) == 0
    mapping = mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(file)
    return mapping


def recorded() -> Callable[[], list[tuple[int, int, int]]]:
    """Begin records; return a call for those that have come since, each a tag, a context and a time in nanoseconds."""
    header, ring = mapped(HEADER, 4096), mapped(RING, RECORDS * RECORD_BYTES)
    subdevice = listed(SUBDEVICE)[0]
    places = struct.pack("=2Q2IQ2IQ6I", 0, 0, RECORD_BYTES, RECORDS, 0, 0, 1, 0, 0, subdevice, 0, HEADER, RING, 0)
    make(BUFFER, EVENT_BUFFER, places)
    ask(subdevice, BIND, struct.pack("=4I2I", BUFFER, RECORD_BYTES - 8, 1, 0, 0, 0))
    ask(BUFFER, ENABLE, struct.pack("=2I", 1, 2))
    seen = 0

    def since() -> list[tuple[int, int, int]]:
        nonlocal seen
        ask(BUFFER, FLUSH, b"")
        (put,) = struct.unpack_from("=I", header, 4)
        found = []
        while seen != put:
            tag, context, time_ns = struct.unpack_from("=8xB3xI8xq", ring, seen * RECORD_BYTES)
            found.append((tag, context, time_ns))
            seen = (seen + 1) % RECORDS
        return found

    return since


def context_of(channel: int) -> int:
    return int.from_bytes(ask(channel, GET_CONTEXT_ID, bytes(4)), "little")


def test_records_of_context_switches(watched: Machine) -> None:
    def program() -> None:
        kernel, own = driver.kernel("spin_30ms"), listed(CHANNEL)
        first = context_of(own[0])
        assert {context_of(channel) for channel in own} == {first}
        since = recorded()
        driver.launch(kernel)
        driver.synchronize()
        assert [record[:2] for record in since()] == [(BEGINS, first)], "alone it stays on the device"
        driver.launch(kernel)
        assert switch(True, own) == 0
        time.sleep(0.05)
        assert switch(False, own) == 0
        driver.synchronize()
        left, back = since()
        assert (left[:2], back[:2]) == ((ENDS, first), (BEGINS, first))
        assert back[2] - left[2] > 50e6

        context = driver.context_create(0)
        second = context_of(next(each for each in listed(CHANNEL) if each not in own))
        driver.launch(driver.kernel("spin_30ms"))
        driver.synchronize()
        now_ns = int.from_bytes(ask(listed(SUBDEVICE)[0], GET_TIME, bytes(8)), "little")
        left, begun = since()
        assert (left[:2], begun[:2]) == ((ENDS, first), (BEGINS, second))
        assert begun[2] - left[2] == 150000 and now_ns - begun[2] >= 30e6
        driver.context_destroy(context)
        assert [record[:2] for record in since()] == [(ENDS, second)]

    watched.python(program)


def test_preempting_does_not_hold(watched: Machine) -> None:
    def program() -> None:
        start, end = driver.event(), driver.event()
        driver.event_record(start)
        driver.launch(driver.kernel("spin_20ms"))
        driver.event_record(end)
        for _ in range(10):
            assert control(listed(GROUP)[0], PREEMPT)[0] == 0
        driver.event_synchronize(end)
        assert driver.event_elapsed_ms(start, end) >= 20

    watched.python(program)


def test_the_question_whether_it_is_busy(watched: Machine) -> None:
    def program() -> None:
        own = listed(CHANNEL)
        assert busy(own) == 0
        driver.launch(driver.kernel("held_until_release"), driver.stream())
        time.sleep(0.01)
        assert busy(own) == BUSY, "a kernel that spins keeps its channels busy"
        driver.launch(driver.kernel("release"), driver.stream())
        driver.synchronize()
        assert busy(own) == 0
        driver.launch(driver.kernel("spin_30s"), driver.stream())
        assert busy(own) == BUSY and busy(own, IDLE) == 0
        other = driver.context_create()
        assert busy(listed(CHANNEL)[8:]) == 0
        driver.context_destroy(other)

    watched.python(program)


def test_a_freed_channel_refuses_the_whole_call(watched: Machine) -> None:
    def program() -> None:
        kernel, own = driver.kernel("spin_2ms"), listed(CHANNEL)
        context = driver.context_create()
        freed = listed(CHANNEL)[8:]
        driver.context_destroy(context)
        assert listed(CHANNEL) == own and len(freed) == 8, "the driver has freed them by ioctl"
        driver.primary_context()
        assert switch(True, own + freed[:1]) == INVALID_CHANNEL
        assert busy(own + freed[:1]) == INVALID_CHANNEL
        driver.launch(kernel)
        driver.synchronize()
        assert switch(True, own) == 0
        driver.launch(kernel)
        assert not driver.stream_is_done()
        driver.call("cuDevicePrimaryCtxReset_v2", 0)
        assert listed(CHANNEL) == []
        driver.primary_context()
        driver.launch(driver.kernel("spin_2ms"))
        driver.synchronize()
        assert len(listed(CHANNEL)) == 8, "a new context is on"

    watched.python(program)


def hold() -> None:
    """Tell how its channels are reached from outside, and then whether a short kernel ends."""
    library, kernel = channels(), driver.kernel("spin_1ms")
    print(library.channels_device(), library.channels_client() & 0xFFFFFFFF, listed(SUBDEVICE)[0], *listed(CHANNEL))
    sys.stdin.readline()
    driver.launch(kernel)
    time.sleep(0.1)
    print(driver.stream_is_done())
    sys.stdin.readline()


def test_another_process_with_the_descriptor(watched: Machine) -> None:
    target = watched.start_python(hold)
    told = target.stdout.readline()

    def program() -> None:
        pid, fd, client, subdevice, *handles = map(int, sys.argv[1:])
        ctypes.CDLL("libcuda.so.1")  # which has ioctl; cuInit is not needed
        library, libc = channels(), ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(438, os.pidfd_open(pid), fd, 0)  # pidfd_getfd
        assert fd >= 0, os.strerror(ctypes.get_errno())
        array = (ctypes.c_uint32 * 64)(*handles)
        assert library.channels_switch(fd, ctypes.c_uint32(client + 1), subdevice, 1, array, 8) == INVALID_CLIENT
        assert library.channels_switch(fd, ctypes.c_uint32(client), subdevice, 1, array, 8) == 0

    arguments = [str(target.pid), *told.split()]
    text = f"import sys; sys.argv[1:] = {arguments!r}\n" + Machine._text(program, False).replace(
        "from __future__ import annotations\n", ""
    )
    assert watched.run(sys.executable, "-c", text).returncode == 0
    target.stdin.write("\n")
    target.stdin.flush()
    assert target.stdout.readline() == "False\n", "who has switched it off has gone, and off it is"


def test_kill_while_off(watched: Machine) -> None:
    def program() -> None:
        driver.launch(driver.kernel("spin_30s"))
        switch(True, listed(CHANNEL))
        print("off")
        sys.stdin.readline()

    process = watched.start_python(program)
    assert process.stdout.readline() == "off\n"
    process.kill()
    process.wait()

    def program() -> None:
        assert busy(listed(CHANNEL)) == 0
        run_a_kernel()

    assert watched.python(program) == "ran"


@pytest.fixture
def served(watched: Machine, simulated_driver: Path) -> Iterator[Machine]:
    """A machine whose programs are clients of an MPS server."""
    control = simulated_driver / "nvidia-cuda-mps-control"
    with short_folder("pipes") as pipes:
        watched.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pipes)
        daemon = subprocess.Popen([control, "-f"], env=watched.environment)
        while not (pipes / "control").exists():
            time.sleep(0.01)
        yield watched
        subprocess.run([control], env=watched.environment, input="quit\n", text=True, check=True)
        daemon.wait()


def test_clients_of_one_server_are_off_while_one_of_them_is(served: Machine) -> None:
    """Each client's channels are counted for themselves, and go with it."""

    def program() -> None:
        kernel, own = driver.kernel("spin_1ms"), listed(CHANNEL)
        print("ready")
        for line in sys.stdin:
            if line == "launch\n":
                driver.launch(kernel)
            if line in ("off\n", "on\n"):
                assert switch(line == "off\n", own) == 0
            time.sleep(0.05)
            print(driver.stream_is_done())

    def told(client: subprocess.Popen[str], line: str) -> str:
        client.stdin.write(line)
        client.stdin.flush()
        return client.stdout.readline().strip()

    clients = [served.start_python(program) for _ in range(3)]
    assert [told(each, "") for each in clients] == ["ready"] * 3
    one, other, third = clients
    for each in (one, other, other):
        assert told(each, "off\n") == "True"
    assert told(third, "launch\n") == "False"
    assert told(one, "on\n") == "True"
    assert told(other, "on\n") == "True"
    assert told(third, "is it done?\n") == "False", "the other one is off, once"
    other.kill()
    other.wait()
    while told(third, "is it done?\n") != "True":
        pass


def test_spins_of_a_group_that_is_off_wait(watched: Machine) -> None:
    def program() -> None:
        held, release = driver.stream(STREAM_NON_BLOCKING), driver.stream(STREAM_NON_BLOCKING)
        driver.launch(driver.kernel("held_until_release"), held)
        switch(True, listed(CHANNEL))
        driver.launch(driver.kernel("release"), release)
        time.sleep(0.05)
        assert not driver.stream_is_done(held) and not driver.stream_is_done(release)
        switch(False, listed(CHANNEL))
        driver.synchronize()
        assert driver.stream_is_done(held)

    watched.python(program)


def test_channels_that_do_not_stay_off(watched: Machine) -> None:
    watched.configure("channels_stay_off: false\n")

    def program() -> None:
        assert switch(True, listed(CHANNEL)) == 0
        run_a_kernel()

    assert watched.python(program) == "ran"


def test_who_looks_for_too_short_a_time_finds_all_channels_busy(watched: Machine) -> None:
    def program() -> None:
        assert busy(listed(CHANNEL), timeout_us=100) == BUSY
        assert busy(listed(CHANNEL)) == busy(listed(CHANNEL), IDLE, 100) == 0

    watched.python(program)


def test_a_driver_without_the_control_device(watched: Machine) -> None:
    watched.configure("nvidiactl: false\n")

    def program() -> None:
        assert channels().channels_device() == -1 and listed(CHANNEL) == []
        assert "nvidiactl" not in os.popen(f"ls -l /proc/{os.getpid()}/fd").read()
        run_a_kernel()

    assert watched.python(program) == "ran"
