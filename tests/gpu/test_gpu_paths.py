"""Every path by which a program takes device memory, driven past the limit on a real driver."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from runners import PROGRAMS, answer, vgpurun

from cuda_driver import LIMIT_STACK, STREAM_NON_BLOCKING, CudaError, Driver, ptx
from support import CHECKOUT
from support.programs import text_of

LIMIT_MIB = 2048
MIB = 1 << 20
Allocate = Callable[[Driver], Any]
Free = Callable[[Driver, Any], None]


def paths(pool: int) -> dict[str, tuple[Allocate, Free]]:
    """Functions that allocate, and those that free; each about 100 MiB."""
    return {
        "cuMemAlloc": (lambda d: d.mem_alloc(100 * MIB), Driver.mem_free),
        "cuMemAlloc, odd": (lambda d: d.mem_alloc(2 * MIB + 1), Driver.mem_free),
        "cuMemAllocPitch": (lambda d: d.mem_alloc_pitch(1000 * 1000, 105)[0], Driver.mem_free),
        "cuMemAllocManaged": (lambda d: d.mem_alloc_managed(100 * MIB), Driver.mem_free),
        "cuMemAllocAsync": (lambda d: d.mem_alloc_async(100 * MIB), Driver.mem_free_async),
        "cuMemAllocFromPoolAsync": (lambda d: d.mem_alloc_async(100 * MIB, pool=pool), Driver.mem_free_async),
        "cuMemCreate": (lambda d: d.mem_create(100 * MIB), Driver.mem_release),
        "cuArrayCreate": (lambda d: d.array(2560, 2560), Driver.array_destroy),
        "cuArray3DCreate": (lambda d: d.array_3d(256, 256, 100), Driver.array_destroy),
        "cuMipmappedArrayCreate": (lambda d: d.mipmapped_array(2560, 2560, 4), Driver.mipmapped_array_destroy),
        "a graph's node": (lambda d: d.graph_run_alloc(100 * MIB), Driver.mem_free),
        "a captured allocation": (lambda d: captured(d, 100 * MIB), Driver.mem_free),
        "cuModuleLoadData": (lambda d: d.module(ptx(100 * MIB)), Driver.module_unload),
        "cuLibraryLoadData": (lambda d: d.library_load(ptx(100 * MIB)), Driver.library_unload),
        "cuStreamCreate": (lambda d: d.stream(), Driver.stream_destroy),
        "cuCtxCreate": (lambda d: d.context_create(), Driver.context_destroy),
    }


def captured(d: Driver, size_bytes: int) -> int:
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


def until_refused(d: Driver, allocate: Allocate) -> tuple[list[Any], str]:
    held = []
    while True:
        try:
            held.append(allocate(d))
        except CudaError as error:
            return held, error.name


def driver_mib() -> float:
    import driver_nvml  # in programs/

    return driver_nvml.process_bytes()[os.getpid()] / MIB


# Libraries are loaded at once: loaded lazily they take their memory with a launch, which cannot be refused.
ENVIRONMENT = {
    "PYTHONPATH": ":".join(map(str, (CHECKOUT / "tests", PROGRAMS, os.environ.get("PYTHONPATH", "")))),
    "CUDA_MODULE_LOADING": "EAGER",
}


@pytest.mark.parametrize("path", paths(pool=0))
def test_no_path_escapes(path: str, python: str) -> None:
    def program() -> None:
        d = Driver.started()
        allocate, free = paths(d.pool_create())[path]
        before_mib = driver_mib()
        held, refusal = until_refused(d, allocate)
        at_refusal_mib = driver_mib()
        for each in held:
            free(d, each)
        d.primary_context()  # a destroyed context may have been the current one
        d.synchronize()
        again, _ = until_refused(d, allocate)
        answered = {"granted": len(held), "refusal": refusal, "granted_again": len(again)}
        print(json.dumps(answered | {"before_mib": before_mib, "at_refusal_mib": at_refusal_mib}))

    found = answer(vgpurun(["local", "--mem", "2g", "--", python, "-c", text_of(program)], ENVIRONMENT))
    print(path, found)
    assert found["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["at_refusal_mib"] <= LIMIT_MIB
    # A context keeps the memory of its streams when they are gone.
    again = 0 if path == "cuStreamCreate" else found["granted"] - 1
    assert found["granted"] >= 2 and found["granted_again"] >= again


def result(call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except CudaError as error:
        return error.name
    return "granted"


def launch_graphs_and_set_stacks() -> None:
    d = Driver.started()
    found: dict[str, Any] = {}
    stream = d.stream(STREAM_NON_BLOCKING)
    peak = d.graph_instantiate(d.memory_graph(*[400 * MIB] * 8))
    found["more in sum than fits, less at its peak"] = [result(d.graph_launch, peak, stream) for _ in range(3)]
    d.synchronize()
    found["after it, MiB"] = driver_mib()
    large = d.graph_instantiate(d.memory_graph(900 * MIB, 900 * MIB, free=False))
    found["too large"] = [result(d.graph_launch, large, stream), result(d.graph_upload, large, stream)]
    found["uploaded as it is made"] = result(d.graph_instantiate_uploaded, d.memory_graph(1700 * MIB), stream)
    found["after them, MiB"] = driver_mib()
    d.graph_update(peak, d.memory_graph(*[1700 * MIB] * 8))
    found["updated to be too large"] = result(d.graph_launch, peak, stream)
    d.graph_update(peak, d.memory_graph(*[100 * MIB] * 8))
    found["updated to fit"] = result(d.graph_launch, peak, stream)
    d.synchronize()
    d.mem_alloc(1200 * MIB)
    with d.capture(stream):  # which a full device does not break
        d.mem_free_async(d.mem_alloc_async(1000 * MIB, stream), stream)
    found["at the end, MiB"] = driver_mib()
    found["stacks too large"] = result(d.context_set_limit, LIMIT_STACK, 65536)
    found["stack afterwards"] = d.context_limit(LIMIT_STACK)
    found["after that, MiB"] = driver_mib()
    print(json.dumps(found))


def test_graphs_and_stacks_are_held_to_the_limit(python: str) -> None:
    program = text_of(launch_graphs_and_set_stacks)
    found = answer(vgpurun(["local", "--mem", "2g", "--", python, "-c", program], ENVIRONMENT))
    print(found)
    refused = "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["more in sum than fits, less at its peak"] == ["granted"] * 3
    assert found["too large"] == [refused, refused]
    assert found["uploaded as it is made"] == found["updated to be too large"] == refused
    assert found["updated to fit"] == "granted"
    assert found["stacks too large"] == refused and found["stack afterwards"] <= 2048
    assert all(value <= LIMIT_MIB for name, value in found.items() if name.endswith("MiB"))
