"""No version of a function escapes: old ones, per-thread ones, and all paths mixed in one program."""

from __future__ import annotations

import platform

import pytest
from sandbox import Sandbox

from support import CHECKOUT, unavailable

PRELUDE = """
import ctypes, random
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p
from cuda_driver import *
MIB = 1 << 20
d = Driver()
d.start()
used = lambda: d.mem_used() // MIB
def raw(symbol, types, *arguments):
    function = getattr(d.library, symbol)
    function.argtypes = types
    code = function(*arguments)
    if code:
        raise CudaError(symbol, code, d.error_name(code))
def made(symbol, types, *arguments, out=c_void_p):
    result = out()
    raw(symbol, [c_void_p, *types], byref(result), *arguments)
    return result.value
class OldArray(ctypes.Structure):
    _fields_ = [("width", c_uint), ("height", c_uint), ("format", c_uint), ("channels", c_uint)]
class OldArray3D(ctypes.Structure):
    _fields_ = [("width", c_uint), ("height", c_uint), ("depth", c_uint), ("format", c_uint), ("channels", c_uint),
                ("flags", c_uint)]
def old_pitch():
    address, pitch = c_uint(), c_uint()
    raw("cuMemAllocPitch", [c_void_p, c_void_p, c_uint, c_uint, c_uint], byref(address), byref(pitch), 1000000, 105, 4)
    return address.value
pool = d.pool_create()
def graph(launch):
    def run():
        graph = d.graph()
        d.graph_add_alloc(graph, 96 * MIB)
        executable = d.graph_instantiate(graph)
        raw(launch, [c_void_p, c_void_p], executable, None)
    return run
def graph_made(symbol, types, *arguments):
    def run():
        graph = d.graph()
        d.graph_add_alloc(graph, 96 * MIB)
        d.graph_launch(made(symbol, [c_void_p, *types], graph, *arguments))
    return run
"""

# The simulated driver's own figures, by a copy of its NVML that the library does not know.
DRIVER_FIGURE = f"""
import os, sys
sys.path.insert(0, {str(CHECKOUT / "tests" / "gpu" / "programs")!r})
import driver_nvml
def device_used():
    return driver_nvml.process_bytes()[os.getpid()]
"""
SIZE = "100 * MIB"
VARIANTS = {
    "cuMemAlloc": f"lambda: made('cuMemAlloc', [c_uint], {SIZE}, out=c_uint)",
    "cuMemAllocPitch": "old_pitch",
    "cuMemAllocAsync_ptsz": f"lambda: made('cuMemAllocAsync_ptsz', [c_size_t, c_void_p], {SIZE}, None)",
    "cuMemAllocFromPoolAsync_ptsz": (
        f"lambda: made('cuMemAllocFromPoolAsync_ptsz', [c_size_t, c_void_p, c_void_p], {SIZE}, pool, None)"
    ),
    "cuArrayCreate": "lambda: made('cuArrayCreate', [c_void_p], byref(OldArray(2560, 2560, FORMAT_FLOAT, 4)))",
    "cuArray3DCreate": "lambda: made('cuArray3DCreate', [c_void_p], byref(OldArray3D(256, 256, 100, FORMAT_FLOAT, 4)))",
    "cuCtxCreate": "lambda: made('cuCtxCreate', [c_uint, c_int], 0, 0)",
    "cuCtxCreate_v3": "lambda: made('cuCtxCreate_v3', [c_void_p, c_int, c_uint, c_int], None, 0, 0, 0)",
    "cuCtxCreate_v4": "lambda: made('cuCtxCreate_v4', [c_void_p, c_uint, c_int], None, 0, 0)",
    "cuGraphLaunch": "graph('cuGraphLaunch')",
    "cuGraphLaunch_ptsz": "graph('cuGraphLaunch_ptsz')",
    "cuGraphUpload_ptsz": "graph('cuGraphUpload_ptsz')",
    "cuGraphInstantiate": "graph_made('cuGraphInstantiate', [c_void_p, c_void_p, c_size_t], None, None, 0)",
    "cuGraphInstantiate_v2": "graph_made('cuGraphInstantiate_v2', [c_void_p, c_void_p, c_size_t], None, None, 0)",
    "cuGraphInstantiateWithParams_ptsz": (
        "graph_made('cuGraphInstantiateWithParams_ptsz', [c_void_p], byref(InstantiateParameters(flags=GRAPH_UPLOAD)))"
    ),
}
# Memory that uploaded graphs do not use makes room for the next.
NEVER_FULL = {"cuGraphUpload_ptsz"}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_version_escapes(sandbox: Sandbox, variant: str) -> None:
    if variant in ("cuMemAlloc", "cuMemAllocPitch") and platform.machine() != "x86_64":
        unavailable("the simulated driver has addresses of 32 bits on x86-64 alone")
    code = f"""
allocate = {VARIANTS[variant]}
granted, refusal = 0, ""
while not refusal and granted < 40:
    try:
        allocate()
        granted += 1
    except CudaError as error:
        refusal = error.name
    d.primary_context()
    assert device_used() <= 2048 * MIB
print(granted, refusal)
"""
    granted, *refusal = sandbox.python(PRELUDE + DRIVER_FIGURE + code, CUDA_DEVICE_MEMORY_LIMIT="2g").split()
    if variant in NEVER_FULL:
        assert (int(granted), refusal) == (40, [])
    else:
        assert int(granted) >= 2 and refusal == ["CUDA_ERROR_OUT_OF_MEMORY"]


@pytest.mark.exhaustive
def test_all_paths_at_random_in_one_program(sandbox: Sandbox) -> None:
    code = """
random.seed(1)
size = lambda: random.randint(1, 200 * MIB)
paths = [
    (lambda: d.mem_alloc(size()), d.mem_free),
    (lambda: d.mem_alloc_pitch(random.randint(1, 1 << 20), 100)[0], d.mem_free),
    (lambda: d.mem_alloc_async(size()), d.mem_free_async),
    (lambda: d.mem_alloc_async(size(), pool=pool), d.mem_free_async),
    (lambda: d.mem_create(size() // (2 * MIB) * 2 * MIB + 2 * MIB), d.mem_release),
    (lambda: d.array(random.randint(1, 3000), 2000), d.array_destroy),
    (lambda: d.array_3d(200, 200, random.randint(1, 100)), d.array_destroy),
    (lambda: d.mipmapped_array(random.randint(1, 3000), 2000, 1), d.mipmapped_array_destroy),
    (lambda: d.graph_run_alloc(size()), d.mem_free),
    (lambda: d.module(ptx(size())), d.module_unload),
]
held, refusals, most = [], 0, 0
for step in range(1000):
    if held and random.random() < 0.3:
        free, what = held.pop(random.randrange(len(held)))
        free(what)
    else:
        allocate, free = random.choice(paths)
        try:
            held.append((free, allocate()))
        except CudaError as error:
            assert error.name == "CUDA_ERROR_OUT_OF_MEMORY", error
            refusals += 1
    most = max(most, device_used())
    assert most <= 2048 * MIB, (step, most / MIB)
for free, what in held:
    free(what)
d.synchronize()
d.graph_memory_trim()
assert refusals > 100 and most > 2016 * MIB and used() == 518, (refusals, most, used())
"""
    sandbox.python(PRELUDE + DRIVER_FIGURE + code, timeout_s=240, CUDA_DEVICE_MEMORY_LIMIT="2g")
