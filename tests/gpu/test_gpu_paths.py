"""Every path by which a program takes device memory, driven past the limit on a real driver."""

from __future__ import annotations

import os

import pytest
from runners import PROGRAMS, answer, vgpurun

from support import CHECKOUT

LIMIT_MIB = 2048

# What allocates, and what gives it back; each about 100 MiB.
PATHS = {
    "cuMemAlloc": ("d.mem_alloc(100 * MIB)", "d.mem_free"),
    "cuMemAlloc, odd": ("d.mem_alloc(2 * MIB + 1)", "d.mem_free"),
    "cuMemAllocPitch": ("d.mem_alloc_pitch(1000 * 1000, 105)[0]", "d.mem_free"),
    "cuMemAllocManaged": ("d.mem_alloc_managed(100 * MIB)", "d.mem_free"),
    "cuMemAllocAsync": ("d.mem_alloc_async(100 * MIB)", "d.mem_free_async"),
    "cuMemAllocFromPoolAsync": ("d.mem_alloc_async(100 * MIB, pool=pool)", "d.mem_free_async"),
    "cuMemCreate": ("d.mem_create(100 * MIB)", "d.mem_release"),
    "cuArrayCreate": ("d.array(2560, 2560)", "d.array_destroy"),
    "cuArray3DCreate": ("d.array_3d(256, 256, 100)", "d.array_destroy"),
    "cuMipmappedArrayCreate": ("d.mipmapped_array(2560, 2560, 4)", "d.mipmapped_array_destroy"),
    "a graph's node": ("d.graph_run_alloc(100 * MIB)", "d.mem_free"),
    "cuCtxCreate": ("d.context_create()", "d.context_destroy"),
}

PROGRAM = """
import json, os, driver_nvml
from cuda_driver import *
MIB = 1 << 20
d = Driver(); d.start()
pool = d.pool_create()
def driver_mib():
    return driver_nvml.process_bytes()[os.getpid()] / MIB
def until_refused():
    held = []
    while True:
        try:
            held.append(ALLOCATE)
        except CudaError as error:
            return held, error.name
before = driver_mib()
held, refusal = until_refused()
at_refusal = driver_mib()
for each in held:
    FREE(each)
d.primary_context()  # a destroyed context may have been the current one
d.synchronize()
again, _ = until_refused()
print(json.dumps({"granted": len(held), "refusal": refusal, "before_mib": before, "at_refusal_mib": at_refusal,
                  "granted_again": len(again)}))
"""


@pytest.mark.parametrize("path", PATHS)
def test_no_path_escapes(path: str, python: str) -> None:
    allocate, free = PATHS[path]
    program = PROGRAM.replace("ALLOCATE", allocate).replace("FREE", free)
    folders = (CHECKOUT / "tests", PROGRAMS, os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": ":".join(map(str, folders))}
    found = answer(vgpurun(["local", "--mem", "2g", "--", python, "-c", program], environment))
    print(path, found)
    assert found["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["at_refusal_mib"] <= LIMIT_MIB
    assert found["granted"] >= 2 and found["granted_again"] >= found["granted"] - 1
