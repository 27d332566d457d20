"""Programs, files and neighbours that mean no good, or do strange things: the limit holds, and nothing breaks."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import re
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sandbox import Sandbox
from together import assert_shares

from cuda_driver import STREAM_NON_BLOCKING, Driver, byref, c_size_t, c_uint64, c_void_p
from support import CHECKOUT
from support.programs import text_of

pytestmark = pytest.mark.slow

LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "60"}
VANDALS = ("zeros", "no slots", "random bytes", "random bytes in what is used", "ones", "cut off")


def fill(d: Driver) -> int:
    count = 0
    while (result := d.result("cuMemAlloc_v2", byref(c_uint64()), 100 << 20)) == "CUDA_SUCCESS":
        count += 1
    assert result == "CUDA_ERROR_OUT_OF_MEMORY", result
    return count


def usage_path() -> str:
    return os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]


def mapped_usage() -> mmap.mmap:
    with open(usage_path(), "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def started_vandal(data: mmap.mmap, kind: str) -> Callable[[], None]:
    """Let a thread damage the usage file all the time; return what ends it."""
    has_ended = threading.Event()

    def work() -> None:
        while not has_ended.is_set():
            damage_once(data, kind)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> None:
        has_ended.set()
        thread.join()

    return end


def damage_once(data: mmap.mmap, kind: str) -> None:
    match kind:
        case "zeros":
            data[8:] = bytes(len(data) - 8)
        case "no slots":
            data[12:16] = bytes(4)
        case "random bytes":
            at = random.randrange(len(data) - 65536)
            data[at : at + 65536] = random.randbytes(65536)
        case "random bytes in what is used":
            data[8:16384] = random.randbytes(16384 - 8)
        case "random bytes in the first slots":
            data[64:4160] = random.randbytes(4096)
        case "ones":
            data[8:] = b"\xff" * (len(data) - 8)
        case "cut off":
            os.truncate(usage_path(), random.choice((0, 12, 4096, 33000)))
        case "nothing left":
            os.truncate(usage_path(), 0)
        case _:
            raise ValueError(kind)


@pytest.mark.parametrize("kind", VANDALS)
def test_a_usage_file_that_is_overwritten_all_the_time(sandbox: Sandbox, kind: str) -> None:
    """A process on its own keeps to its limits, and goes on, whatever the file says."""

    def program() -> None:
        d = Driver.started()
        d.mem_alloc(2 << 20)
        k = d.kernel("spin_50us")
        data = mapped_usage()
        end_vandal = started_vandal(data, kind)
        held, end_s = 0, time.monotonic() + 1
        while time.monotonic() < end_s:
            held += fill(d)
            d.mem_get_info()
        end_vandal()
        os.truncate(usage_path(), len(data))
        data[8:] = bytes(len(data) - 8)
        for _ in range(100):
            d.launch(k)
        d.synchronize()
        print(held)

    assert int(sandbox.python(program, **LIMIT)) <= 15


def newcomer() -> None:
    d = Driver()
    d.init()
    result = d.result("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0)
    if result == "CUDA_SUCCESS":
        d.start()
        print(fill(d))
    else:
        print(result)


def overwrite(path: Path, begin: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(random.Random(begin).randbytes(path.stat().st_size - begin))


@pytest.mark.parametrize("damage", [overwrite, os.truncate], ids=["overwritten", "cut off"])
@pytest.mark.parametrize("begin", [0, 8, 64, 32832])
def test_a_usage_file_that_was_damaged_once(sandbox: Sandbox, begin: int, damage: Callable[[Path, int], None]) -> None:
    """Beside a process whose slot says nonsense, idle or not, and after it, there is room."""

    def idle() -> None:
        d = Driver.started()
        print(d.mem_alloc(500 << 20) != 0, flush=True)
        for _ in sys.stdin:
            print(fill(d), flush=True)

    with sandbox.start_python(idle, **LIMIT) as process:
        assert process.stdout.readline() == "True\n"
        damage(sandbox.folder / "usage", begin)
        assert int(sandbox.python(newcomer, **LIMIT)) > 0
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "10\n", "2048 - 518 - 500"
        assert sandbox.python(newcomer, **LIMIT) == "CUDA_ERROR_OUT_OF_MEMORY", "it is counted again"
        process.communicate()
    assert sandbox.python(newcomer, **LIMIT) == "15"


@pytest.mark.parametrize("kind", ["random bytes in the first slots", "nothing left"])
def test_launches_go_on_while_the_usage_file_is_damaged(sandbox: Sandbox, kind: str) -> None:
    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_50us")
        d.launch(k)
        end_vandal = started_vandal(mapped_usage(), kind)
        for _ in range(200):
            d.launch(k)
        d.synchronize()
        end_vandal()
        print("done")

    assert sandbox.python(program, timeout_s=60, **LIMIT) == "done"


def test_all_slots_are_taken(sandbox: Sandbox) -> None:
    """A process that had its slot before goes on. One that finds none gets nothing and says why, but may look."""

    def program() -> None:
        d = Driver.started()
        file = os.open(usage_path(), os.O_RDWR)
        for slot in range(1024):
            with suppress(BlockingIOError):
                fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, (1 << 30) + slot, 1, 0))
        print("taken", flush=True)
        sys.stdin.readline()
        print(fill(d))
        d.launch(d.kernel("spin_50us"))
        d.synchronize()

    def looks_only() -> None:
        d = Driver()
        d.init()
        name = ctypes.create_string_buffer(99)
        d.call("cuDeviceGetName", name, 99, 0)
        print(name.value.decode())

    with sandbox.start_python(program, **LIMIT) as process:
        assert process.stdout.readline() == "taken\n"
        refused = sandbox.run([sys.executable, "-c", text_of(newcomer)], **LIMIT)
        assert sandbox.python(looks_only, **LIMIT) == "Simulated A"
        assert process.communicate("\n")[0] == "15\n"
    assert refused.stdout == "CUDA_ERROR_OUT_OF_MEMORY\n"
    (line, *_) = refused.stderr.splitlines()
    assert "usage: all 1024 slots are taken: end another process and start this one again; nothing is granted" in line
    assert sandbox.python(newcomer, **LIMIT) == "15"


def test_closed_standard_streams(sandbox: Sandbox) -> None:
    """A program's output to a closed descriptor does not land in our files."""

    def program() -> None:
        result = os.dup(1)
        os.set_inheritable(result, False)
        os.closerange(0, 3)
        count = fill(Driver.started())
        for number in (0, 1, 2):
            with suppress(OSError):
                os.write(number, b"x" * 64)
        with open(usage_path(), "rb") as file:
            os.write(result, b"%d %r" % (count, file.read(8)))

    assert sandbox.python(program, **LIMIT) == "15 b'VCGUSAGE'"


def test_a_descriptor_that_the_program_closed(sandbox: Sandbox) -> None:
    """Its number may be the program's own file by now: that is not closed in a forked child."""

    def program() -> None:
        d = Driver.started()
        d.mem_alloc(2 << 20)
        paths = {number: f"/proc/self/fd/{number}" for number in map(int, os.listdir("/proc/self/fd"))}
        links = {number: os.readlink(path) for number, path in paths.items() if os.path.exists(path)}
        (ours,) = [number for number, link in links.items() if link == usage_path()]
        os.dup2(os.open("/dev/null", os.O_RDONLY), ours)
        child = os.fork()
        if child == 0:
            os.fstat(ours)
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fill(d))

    assert sandbox.python(program, **LIMIT) == "7 15"


@pytest.mark.parametrize("profiled", [False, True])
def test_no_arguments_at_all(sandbox: Sandbox, profiled: bool) -> None:
    """Every caught function, called with nothing but zeros."""
    headers = "".join((CHECKOUT / "lib/src/hook" / name).read_text() for name in ("hooks.h", "profiled_hooks.h"))
    names = re.findall(r"X\((cu\w+)\)", headers)
    assert len(names) > 200

    def program() -> None:
        Driver.started()
        ours, driver = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
        destroying = [name for name in names if "Ctx" in name]
        for name in [name for name in names if name not in destroying] + destroying:
            getattr(ours if hasattr(ours, name) else driver, name)(*[c_uint64(0)] * 11)
        print("done")

    folder = {"PFLOG": str(sandbox.folder)} if profiled else {}
    assert sandbox.python(program, **LIMIT, **folder) == "done"


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**60 + 1])
@pytest.mark.parametrize("limits", [LIMIT, {"CUDA_DEVICE_SM_LIMIT": "60"}])
def test_huge_sizes(sandbox: Sandbox, size: int, limits: dict[str, str]) -> None:
    def program() -> None:
        d = Driver.started()
        d.mem_alloc(100 << 20)
        used = d.mem_used()
        for symbol, arguments in {
            "cuMemAlloc_v2": (c_size_t(size),),
            "cuMemAllocManaged": (c_size_t(size), 1),
            "cuMemAllocAsync": (c_size_t(size), None),
            "cuMemAllocPitch_v2": (byref(c_size_t()), c_size_t(size), c_size_t(size), 4),
        }.items():
            result = d.result(symbol, byref(c_uint64()), *arguments)
            assert result in ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_INVALID_VALUE"), symbol
        d.mem_alloc(100 << 20)
        print(d.mem_used() - used >> 20)

    assert sandbox.python(program, **limits) == "100"


def measure(d: Driver, launch: Callable[[], None]) -> None:
    """Print for which part of the time kernels of 1 ms run."""
    start, count = time.monotonic(), 0
    while time.monotonic() < start + 1.5:
        launch()
        count += 1
    d.synchronize()
    print(count * 1e-3 / (time.monotonic() - start))


def references_to_the_primary_context_come_and_go() -> None:
    d = Driver.started()
    k, context = d.kernel("spin_1ms"), c_void_p()

    def launch() -> None:
        d.launch(k)
        d.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        d.primary_context_release()

    measure(d, launch)


def many_streams() -> None:
    d = Driver.started()
    k = d.kernel("spin_1ms")
    streams = [d.stream(STREAM_NON_BLOCKING) for _ in range(1100)]
    for stream in streams:
        d.launch(d.kernel("spin_50us"), stream)
    d.synchronize()
    measure(d, lambda: d.launch(k, streams[-1]))


def streams_come_and_go() -> None:
    d = Driver.started()
    k = d.kernel("spin_1ms")

    def launch() -> None:
        stream = d.stream()
        d.launch(k, stream)
        d.stream_destroy(stream)

    measure(d, launch)


@pytest.mark.real_time
def test_no_way_around_the_compute_limit(sandbox: Sandbox) -> None:
    ways = (references_to_the_primary_context_come_and_go, many_streams, streams_come_and_go)
    programs = {way.__name__: (sys.executable, "-c", text_of(way)) for way in ways}
    assert_shares(sandbox, programs, 0.23, 0.37, CUDA_DEVICE_SM_LIMIT="30")
