"""Every path by which a program takes device memory, driven past the limit on a real driver."""

from __future__ import annotations

import os

import pytest
from runners import PROGRAMS, answer, vgpurun

from support import CHECKOUT

LIMIT_MIB = 2048

# Functions that allocate, and those that free; each about 100 MiB.
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
    "a captured allocation": ("captured(100 * MIB)", "d.mem_free"),
    "cuModuleLoadData": ("d.module(ptx(100 * MIB))", "d.module_unload"),
    "cuLibraryLoadData": ("d.library_load(ptx(100 * MIB))", "d.library_unload"),
    "cuStreamCreate": ("d.stream()", "d.stream_destroy"),
    "cuCtxCreate": ("d.context_create()", "d.context_destroy"),
}

# Libraries are loaded at once: loaded lazily they take their memory with a launch, which cannot be refused.
ENVIRONMENT = {
    "PYTHONPATH": ":".join(map(str, (CHECKOUT / "tests", PROGRAMS, os.environ.get("PYTHONPATH", "")))),
    "CUDA_MODULE_LOADING": "EAGER",
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
def captured(size_bytes):
    stream = d.stream(STREAM_NON_BLOCKING)
    with d.capture(stream) as graphs:
        address = d.mem_alloc_async(size_bytes, stream)
    executable = d.graph_instantiate(graphs[0])
    try:
        d.graph_launch(executable, stream)
    finally:
        d.synchronize()
        d.graph_exec_destroy(executable)
        d.graph_destroy(graphs[0])
        d.stream_destroy(stream)
    return address
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
    found = answer(vgpurun(["local", "--mem", "2g", "--", python, "-c", program], ENVIRONMENT))
    print(path, found)
    assert found["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["at_refusal_mib"] <= LIMIT_MIB
    # A context keeps the memory of its streams when they are gone.
    again = 0 if path == "cuStreamCreate" else found["granted"] - 1
    assert found["granted"] >= 2 and found["granted_again"] >= again


GRAPHS = """
import json, os, driver_nvml
from cuda_driver import *
MIB = 1 << 20
d = Driver(); d.start()
def driver_mib():
    return driver_nvml.process_bytes()[os.getpid()] / MIB
found = {}
def refused(call, *arguments):
    try:
        call(*arguments)
    except CudaError as error:
        return error.name
    return "granted"
stream = d.stream(STREAM_NON_BLOCKING)
peak = d.graph_instantiate(d.memory_graph(*[400 * MIB] * 8))
found["more in sum than fits, less at its peak"] = [refused(d.graph_launch, peak, stream) for _ in range(3)]
d.synchronize()
found["after it, MiB"] = driver_mib()
large = d.graph_instantiate(d.memory_graph(900 * MIB, 900 * MIB, free=False))
found["too large"] = [refused(d.graph_launch, large, stream), refused(d.graph_upload, large, stream)]
found["uploaded as it is made"] = refused(d.graph_instantiate_uploaded, d.memory_graph(1700 * MIB), stream)
found["after them, MiB"] = driver_mib()
d.graph_update(peak, d.memory_graph(*[1700 * MIB] * 8))
found["updated to be too large"] = refused(d.graph_launch, peak, stream)
d.graph_update(peak, d.memory_graph(*[100 * MIB] * 8))
found["updated to fit"] = refused(d.graph_launch, peak, stream)
d.synchronize()
held = d.mem_alloc(1200 * MIB)
with d.capture(stream):  # which a full device does not break
    d.mem_free_async(d.mem_alloc_async(1000 * MIB, stream), stream)
found["at the end, MiB"] = driver_mib()
found["stacks too large"] = refused(d.context_set_limit, LIMIT_STACK, 65536)
found["stack afterwards"] = d.context_limit(LIMIT_STACK)
found["after that, MiB"] = driver_mib()
print(json.dumps(found))
"""


def test_graphs_and_stacks_are_held_to_the_limit(python: str) -> None:
    found = answer(vgpurun(["local", "--mem", "2g", "--", python, "-c", GRAPHS], ENVIRONMENT))
    print(found)
    refused = "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["more in sum than fits, less at its peak"] == ["granted"] * 3
    assert found["too large"] == [refused, refused]
    assert found["uploaded as it is made"] == found["updated to be too large"] == refused
    assert found["updated to fit"] == "granted"
    assert found["stacks too large"] == refused and found["stack afterwards"] <= 2048
    assert all(value <= LIMIT_MIB for name, value in found.items() if name.endswith("MiB"))
