"""A GPU program for the tests: it needs Python's standard library and the CUDA driver, and prints one JSON line.

gpu.py info                     what the program sees of its devices
gpu.py fill CHUNK_BYTES         allocate until refused, free all, allocate once more
gpu.py hold BYTES               allocate, print, and wait for the end of standard input
gpu.py spin KERNEL SECONDS [BLOCKS]    launch KERNEL for that long and count the launches that ended
gpu.py cells SECONDS            hold a pattern, and look at it every so many seconds, as a notebook does, for an hour
gpu.py member FOLDER            in step with others: see there
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

IN_FLIGHT = 8


def open_driver(name: str) -> ctypes.CDLL:
    """The driver as a program finds it, or, with an empty environment, from where vgpurun mounted it.

    With DLMOPEN it is a copy in a namespace of its own, where nothing is preloaded.
    """
    if os.environ.get("DLMOPEN"):
        dlmopen = ctypes.CDLL(None).dlmopen
        dlmopen.restype = ctypes.c_void_p
        return ctypes.CDLL(name, handle=dlmopen(ctypes.c_long(-1), name.encode(), os.RTLD_NOW))
    try:
        return ctypes.CDLL(name)
    except OSError:
        return ctypes.CDLL(f"/.vgpurun/driver/{name}")


cuda = open_driver("libcuda.so.1")


class CudaError(Exception):
    def __init__(self, function: str, result: int) -> None:
        super().__init__(f"{function} answered {result}")
        self.result = result


def call(function: str, *arguments: object) -> None:
    result = getattr(cuda, function)(*arguments)
    if result:
        raise CudaError(function, result)


def start_context(device: int = 0) -> None:
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def memory_info() -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def allocate(size_bytes: int) -> ctypes.c_uint64:
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
    return pointer


def nvml_total_bytes(index: int) -> int:
    nvml = open_driver("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    device = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    memory = (ctypes.c_ulonglong * 3)()
    result = nvml.nvmlDeviceGetMemoryInfo(device, memory)
    return memory[0] if result == 0 else -result


def info() -> dict[str, object]:
    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    devices = []
    for index in range(count.value):
        start_context(index)
        free, total = memory_info()
        name = ctypes.create_string_buffer(100)
        call("cuDeviceGetName", name, len(name), index)
        devices.append(
            {"name": name.value.decode(), "total": total, "free": free, "nvml_total": nvml_total_bytes(index)}
        )
    return {"devices": devices, "uid": os.getuid()}


def fill(chunk_bytes: int) -> dict[str, object]:
    start_context()
    chunks = []
    result = 0
    while not result:
        try:
            chunks.append(allocate(chunk_bytes))
        except CudaError as error:
            result = error.result
    for chunk in chunks:
        call("cuMemFree_v2", chunk)
    call("cuMemFree_v2", allocate(chunk_bytes))
    return {"granted_bytes": len(chunks) * chunk_bytes, "result": result}


def hold(size_bytes: int) -> dict[str, object]:
    start_context()
    allocate(size_bytes)
    print(json.dumps({"holding": size_bytes}), flush=True)
    sys.stdin.read()
    return {"held": size_bytes}


def spin(kernel: str, seconds: float, blocks: int = 1) -> dict[str, object]:
    start_context()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), b"\0" * 64)
    call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
    launches = 0
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        for _ in range(IN_FLIGHT):
            call("cuLaunchKernel", function, blocks, 1, 1, 1, 1, 1, 0, None, None, None)
        call("cuCtxSynchronize")
        launches += IN_FLIGHT
    end = time.monotonic()
    return {"launches": launches, "seconds": end - start, "began_s": start, "ended_s": end}


def cells(seconds: float) -> dict[str, object]:
    start_context()
    pattern = bytes(range(256)) * 4096
    address, back = allocate(len(pattern)), ctypes.create_string_buffer(len(pattern))
    call("cuMemcpyHtoD_v2", address, pattern, ctypes.c_size_t(len(pattern)))
    for cell in range(int(3600 / seconds)):
        call("cuMemcpyDtoH_v2", back, address, ctypes.c_size_t(len(pattern)))
        print(f"cell {cell}: {'right' if back.raw == pattern else 'wrong'}", flush=True)
        time.sleep(seconds)
    return {}


def wait_for(folder: str, name: str) -> None:
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.01)


def tell(folder: str, name: str, what: object) -> None:
    path = f"{folder}/{name}.{os.uname().nodename}"
    with open(f"{path}.new", "w") as file:
        json.dump(what, file)
    os.rename(f"{path}.new", path)


def member(folder: str) -> dict[str, object]:
    """When FOLDER has `fill` it takes all memory that it gets, at `free` it frees that, at `spin` it computes. What
    came of each it tells in a file there; it ends at `end`."""
    start_context()
    tell(folder, "started", os.getpid())
    wait_for(folder, "fill")
    chunk_bytes, chunks = 20 << 20, []
    try:
        while True:
            chunks.append(allocate(chunk_bytes))
    except CudaError as error:
        tell(folder, "filled", {"bytes": len(chunks) * chunk_bytes, "result": error.result})
    wait_for(folder, "free")
    for chunk in chunks:
        call("cuMemFree_v2", chunk)
    wait_for(folder, "spin")
    tell(folder, "spun", spin("spin_2ms", 3))
    wait_for(folder, "end")
    return {}


def main() -> None:
    verb, *arguments = sys.argv[1:]
    if verb == "info":
        answer = info()
    elif verb == "fill":
        answer = fill(int(arguments[0]))
    elif verb == "cells":
        answer = cells(float(arguments[0]))
    elif verb == "member":
        answer = member(arguments[0])
    elif verb == "hold":
        answer = hold(int(arguments[0]))
    else:
        answer = spin(arguments[0], float(arguments[1]), *map(int, arguments[2:]))
    print(json.dumps(answer), flush=True)


main()
