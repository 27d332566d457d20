"""The program that the demo runs under limits. It needs nothing but Python and the CUDA driver.

    demo_program.py work SECONDS    run kernels of 1 ms one after the other for so long
    demo_program.py all SECONDS     the same, and before it look at the memory and allocate until refused

Prints what it found as one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

CHUNK_BYTES = 64 << 20
OUT_OF_MEMORY = 2
BATCH = 8
WARM_UP_S = 0.3

# One thread that watches the GPU's clock until a millisecond has passed. The simulated GPU reads the time off the name.
SPIN_1MS = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_1ms()
{
  .reg .u64 %start, %now;
  .reg .pred %busy;
  mov.u64 %start, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %busy, %now, 1000000;
  @%busy bra again;
  ret;
}
"""

if len(sys.argv) != 3 or sys.argv[1] not in ("work", "all"):
    sys.exit("usage: demo_program.py work|all SECONDS")

cuda = ctypes.CDLL("libcuda.so.1")


def call(function: str, *arguments: object) -> None:
    result = getattr(cuda, function)(*arguments)
    if result:
        raise SystemExit(f"{function} answered {result}")


def start() -> str:
    """Make a context on the first GPU; returns the GPU's name."""
    call("cuInit", 0)
    context, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuDeviceGetName", name, len(name), 0)
    return name.value.decode()


def memory_info() -> tuple[int, int]:
    """Free and total bytes of the GPU, as CUDA tells them to the program."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def nvml_total_bytes() -> int:
    """The size of the first GPU as nvidia-smi shows it."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryInfo(device, memory)
    return memory[0]


def allocate() -> tuple[int, ctypes.c_uint64]:
    """Ask for one chunk; returns the driver's answer, 0 for granted, and the pointer."""
    pointer = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(CHUNK_BYTES)), pointer


def fill() -> dict[str, int | bool]:
    """Allocate until refused, free everything, and ask once more."""
    chunks = []
    while (answer := allocate())[0] == 0:
        chunks.append(answer[1])
    for chunk in chunks:
        call("cuMemFree_v2", chunk)
    again, chunk = allocate()
    if again == 0:
        call("cuMemFree_v2", chunk)
    return {"granted_bytes": len(chunks) * CHUNK_BYTES, "refused_with": answer[0], "granted_again": again == 0}


def work(seconds: float) -> float:
    """Run kernels of 1 ms for so long; returns how many ended per second."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), SPIN_1MS)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin_1ms")
    events = [ctypes.c_void_p() for _ in range(2)]
    for event in events:
        call("cuEventCreate", ctypes.byref(event), 0)
    run_for(kernel, events, WARM_UP_S)
    return run_for(kernel, events, seconds)


def run_for(kernel: ctypes.c_void_p, events: list[ctypes.c_void_p], seconds: float) -> float:
    """Keep one batch of kernels waiting behind the one that runs, so that the GPU is never without work."""
    launch_batch(kernel, events[0])
    done, begin = 0, time.monotonic()
    while (elapsed_s := time.monotonic() - begin) < seconds:
        launch_batch(kernel, events[1])
        call("cuEventSynchronize", events[0])
        events.reverse()
        done += BATCH
    call("cuEventSynchronize", events[0])
    return done / elapsed_s


def launch_batch(kernel: ctypes.c_void_p, end: ctypes.c_void_p) -> None:
    for _ in range(BATCH):
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    call("cuEventRecord", end, None)


def main() -> None:
    verb, seconds = sys.argv[1], float(sys.argv[2])
    found: dict[str, object] = {"gpu": start()}
    if verb == "all":
        free, total = memory_info()
        found |= {"total_bytes": total, "context_bytes": total - free, "nvml_total_bytes": nvml_total_bytes(), **fill()}
    found["kernels_per_second"] = work(seconds)
    print(json.dumps(found))


main()
