"""No version of a function escapes: old ones, per-thread ones, and all paths mixed in one program."""

from __future__ import annotations

import ctypes
import os
import platform
import random
from collections.abc import Callable
from typing import Any

import pytest
from sandbox import Sandbox

from cuda_driver import (
    FORMAT_FLOAT,
    GRAPH_UPLOAD,
    CudaError,
    Driver,
    InstantiateParameters,
    byref,
    c_int,
    c_size_t,
    c_uint,
    c_void_p,
    ptx,
)
from support import CHECKOUT, PYTHON_PATH, unavailable

MIB = 1 << 20
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "PYTHONPATH": f"{PYTHON_PATH}:{CHECKOUT / 'tests' / 'gpu' / 'programs'}"}
VARIANTS = (
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuCtxCreate",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
    "cuGraphUpload_ptsz",
    "cuGraphInstantiate",
    "cuGraphInstantiate_v2",
    "cuGraphInstantiateWithParams_ptsz",
)
# Memory that uploaded graphs do not use makes room for the next.
NEVER_FULL = {"cuGraphUpload_ptsz"}


def device_used() -> int:
    """Return the simulated driver's own figure, by a copy of its NVML that the library does not know."""
    import driver_nvml

    return int(driver_nvml.process_bytes()[os.getpid()])


def allocate(d: Driver, variant: str, pool: int) -> None:
    """Allocate some 100 MiB, or a context, by this function."""

    def raw(types: list[Any], *arguments: Any) -> None:
        function = getattr(d.library, variant)
        function.argtypes = types
        if code := function(*arguments):
            raise CudaError(variant, code, d.error_name(code))

    def made(types: list[Any], *arguments: Any, out: Any = c_void_p) -> Any:
        result = out()
        raw([c_void_p, *types], byref(result), *arguments)
        return result.value

    def graph() -> int:
        made_graph = d.graph()
        d.graph_add_alloc(made_graph, 96 * MIB)
        return made_graph

    def graph_made(types: list[Any], *arguments: Any) -> None:
        d.graph_launch(made([c_void_p, *types], graph(), *arguments))

    class OldArray(ctypes.Structure):
        _fields_ = [("width", c_uint), ("height", c_uint), ("format", c_uint), ("channels", c_uint)]

    class OldArray3D(ctypes.Structure):
        _fields_ = [
            ("width", c_uint),
            ("height", c_uint),
            ("depth", c_uint),
            ("format", c_uint),
            ("channels", c_uint),
            ("flags", c_uint),
        ]

    if variant == "cuMemAlloc":
        made([c_uint], 100 * MIB, out=c_uint)
    elif variant == "cuMemAllocPitch":
        raw([c_void_p, c_void_p, c_uint, c_uint, c_uint], byref(c_uint()), byref(c_uint()), 1000000, 105, 4)
    elif variant == "cuMemAllocAsync_ptsz":
        made([c_size_t, c_void_p], 100 * MIB, None)
    elif variant == "cuMemAllocFromPoolAsync_ptsz":
        made([c_size_t, c_void_p, c_void_p], 100 * MIB, pool, None)
    elif variant == "cuArrayCreate":
        made([c_void_p], byref(OldArray(2560, 2560, FORMAT_FLOAT, 4)))
    elif variant == "cuArray3DCreate":
        made([c_void_p], byref(OldArray3D(256, 256, 100, FORMAT_FLOAT, 4)))
    elif variant == "cuCtxCreate":
        made([c_uint, c_int], 0, 0)
    elif variant == "cuCtxCreate_v3":
        made([c_void_p, c_int, c_uint, c_int], None, 0, 0, 0)
    elif variant == "cuCtxCreate_v4":
        made([c_void_p, c_uint, c_int], None, 0, 0)
    elif variant in ("cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload_ptsz"):
        raw([c_void_p, c_void_p], d.graph_instantiate(graph()), None)
    elif variant in ("cuGraphInstantiate", "cuGraphInstantiate_v2"):
        graph_made([c_void_p, c_void_p, c_size_t], None, None, 0)
    else:
        graph_made([c_void_p], byref(InstantiateParameters(flags=GRAPH_UPLOAD)))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_version_escapes(sandbox: Sandbox, variant: str) -> None:
    if variant in ("cuMemAlloc", "cuMemAllocPitch") and platform.machine() != "x86_64":
        unavailable("the simulated driver has addresses of 32 bits on x86-64 alone")

    def program() -> None:
        d = Driver.started()
        pool = d.pool_create()
        granted, refusal = 0, ""
        while not refusal and granted < 40:
            try:
                allocate(d, variant, pool)
                granted += 1
            except CudaError as error:
                refusal = error.name
            d.primary_context()
            assert device_used() <= 2048 * MIB
        print(granted, refusal)

    granted, *refusal = sandbox.python(program, **LIMIT).split()
    if variant in NEVER_FULL:
        assert (int(granted), refusal) == (40, [])
    else:
        assert int(granted) >= 2 and refusal == ["CUDA_ERROR_OUT_OF_MEMORY"]


@pytest.mark.exhaustive
def test_all_paths_at_random_in_one_program(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        pool = d.pool_create()
        random.seed(1)

        def size() -> int:
            return random.randint(1, 200 * MIB)

        paths: list[tuple[Callable[[], int], Callable[[int], object]]] = [
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
                make, free = random.choice(paths)
                try:
                    held.append((free, make()))
                except CudaError as error:
                    if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                        raise
                    refusals += 1
            most = max(most, device_used())
            assert most <= 2048 * MIB, (step, most / MIB)
        for free, what in held:
            free(what)
        d.synchronize()
        d.graph_memory_trim()
        used = d.mem_used() // MIB
        assert refusals > 100 and most > 2016 * MIB and used == 518, (refusals, most, used)

    sandbox.python(program, timeout_s=240, **LIMIT)
