"""Programs that come to the driver past the preloaded library, and then do as they like.

escape.py WAY hold BYTES           take memory, and wait for the end of standard input
escape.py WAY fill STEP_BYTES      take memory in steps for ever
escape.py WAY spin KERNEL SECONDS  launch KERNEL for that long, and count

WAY is how: plain (by the library), copy (a second copy of the driver), namespace (dlmopen), loader (a dynamic loader
that knows no /etc/ld.so.preload), unmounted (that file is unmounted first), mounts (the same in a mount namespace).
`child-WAY` does so in a child, `daemon-WAY` in a process that has left its parents.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

LOADER = "/lib64/ld-linux-x86-64.so.2"
PRELOAD = b"/etc/ld.so.preload"
IN_FLIGHT = 8


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


def open_driver(way: str) -> ctypes.CDLL:
    """Come to the driver in this way."""
    libc = ctypes.CDLL(None, use_errno=True)
    if way == "copy":
        copy = f"{tempfile.mkdtemp()}/other.so"
        shutil.copy(driver_path(), copy)
        return ctypes.CDLL(copy)
    if way == "namespace":
        libc.dlmopen.restype = ctypes.c_void_p
        handle = libc.dlmopen(ctypes.c_long(-1), driver_path().encode(), 2)
        assert handle, "dlmopen"
        return ctypes.CDLL("libcuda.so.1", handle=handle)
    if way == "loader":
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

    def allocate(size: int) -> None:
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))

    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    if verb == "hold":
        allocate(int(arguments[0]))
        sys.stdin.read()
    elif verb == "fill":
        while True:
            allocate(int(arguments[0]))
            time.sleep(0.01)
    else:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), b".version 8.0\n.target sm_90\n.address_size 64\n")
        call("cuModuleGetFunction", ctypes.byref(function), module, arguments[0].encode())
        began, launches, one = time.monotonic(), 0, (1,) * 6
        while time.monotonic() < began + float(arguments[1]):
            for _ in range(IN_FLIGHT):
                call("cuLaunchKernel", function, *one, 0, None, None, None)
            call("cuCtxSynchronize")
            launches += IN_FLIGHT
        print(f"{launches} launches in {time.monotonic() - began} s", flush=True)


if __name__ == "__main__":
    main()
