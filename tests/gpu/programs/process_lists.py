"""Prints the rows of both versions of NVML's list of processes, this one among them, and what vgpurun makes of it."""

import ctypes
import json
import os

from vgpurun.host import nvml

cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
nvml.init()
device = nvml.device_at(0)


def listed(version: int) -> list[list[int]]:
    ask = f"nvmlDeviceGetComputeRunningProcesses_v{version}"
    rows = nvml._rows(nvml._Process, lambda count, rows: nvml.call(ask, device, count, rows))
    return sorted([row.pid, row.usedGpuMemory, row.gpuInstanceId, row.computeInstanceId] for row in rows)


is_listed = os.getpid() in nvml.compute_processes(device)
print(json.dumps({"second": listed(2), "third": listed(3), "is_listed": is_listed}))
