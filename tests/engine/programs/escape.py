"""Programs that come to the driver past the preloaded library, and then do as they like.

escape.py WAY hold BYTES                  take memory, and wait for the end of standard input
escape.py WAY fill STEP_BYTES [PAUSE_S]   take memory in steps until it is refused, and say how much that was
escape.py WAY grow BYTES STEP_BYTES       take so much in steps of 0.03 s, and stay until it is ended
escape.py WAY spin KERNEL SECONDS [FILE]  launch KERNEL for that long, once FILE is there, and count

WAY is how: plain (by the library), copy (a second copy of the driver), namespace (dlmopen), table (the driver's own
table of symbols), loader (a dynamic loader that knows no /etc/ld.so.preload), counted (the same, by a process that the
library counts before), traced (the loader's word for that file is changed in its memory), memfd (a static program that
is in no file), unmounted (that file is unmounted first), mounts (the same in a mount namespace).
`child-WAY` does so in a child, `daemon-WAY` in a process that has left its parents.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

LOADER = "/lib64/ld-linux-x86-64.so.2"
PRELOAD = b"/etc/ld.so.preload"
STATIC = "/past/static"
IN_FLIGHT = 8
TRACE_ME, DETACH = 0, 17
SYMBOLS = 11  # SHT_DYNSYM


def driver_path() -> str:
    """Return where the driver is, as the loader says."""
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libcuda.so" in line)


def start_again(*before: str) -> None:
    """Replace this process by one that goes in directly."""
    command = [*before, sys.executable, __file__, "direct", *sys.argv[2:]]
    os.execv(command[0], command)


def own_loader() -> str:
    """Return a loader that looks for another file."""
    made = Path(tempfile.mkdtemp(), "loader")
    made.write_bytes(Path(LOADER).read_bytes().replace(PRELOAD, PRELOAD[:-1] + b"X"))
    made.chmod(0o755)
    return str(made)


class Table:
    """The driver's functions by the table of symbols in its file, which is asked of nobody."""

    def __init__(self, path: str) -> None:
        lines = Path("/proc/self/maps").read_text().splitlines()
        self._base = min(int(line.partition("-")[0], 16) for line in lines if line.endswith(path))
        self._places: dict[str, int] = {}
        image = Path(path).read_bytes()
        sections, size, count = struct.unpack_from("<Q10xHH", image, 0x28)
        heads = [struct.unpack_from("<IIQQQQII", image, sections + size * each) for each in range(count)]
        for _, kind, _, _, place, length, link, _ in heads:
            for at in range(place, place + length if kind == SYMBOLS else 0, 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, at)
                begin = heads[link][4] + name
                self._places[image[begin : image.index(b"\0", begin)].decode()] = value

    def __getattr__(self, name: str) -> object:
        return ctypes.CFUNCTYPE(ctypes.c_int)(self._base + self._places[name])


def trace() -> None:
    """Start again as a child, in whose memory the loader's word for the preload file is changed."""
    ptrace = ctypes.CDLL(None).ptrace
    pid = os.fork()
    if pid == 0:
        ptrace(TRACE_ME, 0, 0, 0)
        start_again()
    os.waitpid(pid, 0)
    offset = Path(LOADER).read_bytes().index(PRELOAD)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, _, first, _, _, *path = line.split()
        begin, end = (int(each, 16) for each in place.split("-"))
        if path and path[0] == str(Path(LOADER).resolve()) and 0 <= offset - int(first, 16) < end - begin:
            with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
                memory.seek(begin + offset - int(first, 16))
                memory.write(PRELOAD[:-1] + b"X")
    ptrace(DETACH, pid, 0, 0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def become_memory() -> None:
    """Go on as a program that is in no file."""
    file = os.memfd_create("past")
    os.write(file, Path(STATIC).read_bytes())
    os.execve(file, ["past", *sys.argv[2:]], os.environ)


def open_driver(way: str) -> object:
    """Come to the driver in this way."""
    libc = ctypes.CDLL(None, use_errno=True)
    if way == "table":
        return Table(driver_path())
    if way == "traced":
        trace()
    if way == "memfd":
        become_memory()
    if way == "copy":
        copy = f"{tempfile.mkdtemp()}/other.so"
        shutil.copy(driver_path(), copy)
        return ctypes.CDLL(copy)
    if way == "namespace":
        libc.dlmopen.restype = ctypes.c_void_p
        handle = libc.dlmopen(ctypes.c_long(-1), driver_path().encode(), 2)
        assert handle, "dlmopen"
        return ctypes.CDLL("libcuda.so.1", handle=handle)
    if way == "counted":
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    if way in ("loader", "counted"):
        start_again(own_loader())
    if way == "mounts":
        assert libc.unshare(0x00020000) == 0, "unshare"
    if way in ("unmounted", "mounts"):
        assert libc.umount2(PRELOAD, 2) == 0, "umount"
        start_again()
    return ctypes.CDLL("libcuda.so.1")


def main() -> None:
    way, verb, *arguments = sys.argv[1:]
    manner, _, way = way.rpartition("-")
    if manner and os.fork():
        sys.stdin.read()
        return
    if manner == "daemon":
        os.setsid()
        if os.fork():
            os._exit(0)
    cuda = open_driver(way)

    def call(function: str, *values: object) -> None:
        result = getattr(cuda, function)(*values)
        assert result == 0, f"{function} answered {result}"

    def allocate(size: int) -> int:
        pointer = ctypes.c_uint64()
        return int(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))

    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    if verb == "hold":
        assert allocate(int(arguments[0])) == 0
        sys.stdin.read()
    elif verb == "fill":
        step, *pause_s = arguments
        granted = 0
        while not (result := allocate(int(step))):
            granted += int(step)
            time.sleep(float(pause_s[0]) if pause_s else 0.01)
        print(json.dumps({"result": result, "granted_bytes": granted}), flush=True)
    elif verb == "grow":
        size, step = map(int, arguments)
        for _ in range(0, size, step):
            assert allocate(step) == 0
            time.sleep(0.03)
        while True:
            signal.pause()
    else:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), b".version 8.0\n.target sm_90\n.address_size 64\n")
        call("cuModuleGetFunction", ctypes.byref(function), module, arguments[0].encode())
        while len(arguments) > 2 and not Path(arguments[2]).exists():
            time.sleep(0.02)
        began, launches, one = time.monotonic(), 0, (1,) * 6
        while time.monotonic() < began + float(arguments[1]):
            for _ in range(IN_FLIGHT):
                call("cuLaunchKernel", function, *one, 0, None, None, None)
            call("cuCtxSynchronize")
            launches += IN_FLIGHT
        print(f"{launches} launches in {time.monotonic() - began} s", flush=True)


if __name__ == "__main__":
    main()
