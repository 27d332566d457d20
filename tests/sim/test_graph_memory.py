"""Memory that the nodes of graphs allocate."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from simulated import MIB, Machine, driver

from cuda_driver import (
    GRAPH_AUTO_FREE,
    GRAPH_MEMORY_RESERVED,
    GRAPH_MEMORY_USED,
    POOL_RESERVED_CURRENT,
    STREAM_NON_BLOCKING,
    CudaError,
    byref,
)


def taken(before: int) -> int:
    """Return how many MiB are in use that were not before."""
    return int(driver.mem_used() - before) // MIB


def failure(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises."""
    try:
        call()
    except CudaError as error:
        return str(error.name)
    return "none"


def kept() -> list[int]:
    """Return how many MiB are kept for graphs, and how many of them are used."""
    return [driver.graph_memory(a) // MIB for a in (GRAPH_MEMORY_RESERVED, GRAPH_MEMORY_USED)]


def test_memory_is_taken_at_the_launch_for_the_peak_and_kept(machine: Machine) -> None:
    def program() -> None:
        stream = driver.stream(STREAM_NON_BLOCKING)
        before = driver.mem_used()

        graph = driver.memory_graph(96 * MIB, 50 * MIB + 1, 10)
        executable = driver.graph_instantiate(graph)
        assert (taken(before), kept()) == (0, [0, 0])
        driver.graph_launch(executable, stream)
        assert (taken(before), kept()) == (96, [96, 0])
        driver.graph_launch(executable, stream)
        assert (taken(before), kept()) == (96, [96, 0])
        driver.graph_memory_trim()
        assert (taken(before), kept()) == (0, [0, 0])
        driver.graph_upload(executable, stream)
        assert kept() == [96, 0]
        driver.graph_exec_destroy(executable)
        driver.graph_destroy(graph)
        assert kept() == [96, 0]

    machine.python(program)


def test_what_a_graph_leaves_allocated(machine: Machine) -> None:
    def program() -> None:
        stream = driver.stream(STREAM_NON_BLOCKING)
        before = driver.mem_used()

        graph = driver.graph()
        _, address = driver.graph_add_alloc(graph, 64 * MIB)
        executable = driver.graph_instantiate(graph)
        assert driver.result("cuMemFree_v2", address) == "CUDA_ERROR_INVALID_VALUE", "nothing is there yet"
        driver.graph_launch(executable, stream)
        driver.graph_memory_trim()
        assert (taken(before), kept()) == (64, [64, 64])
        assert driver.result("cuGraphLaunch", executable, stream) == "CUDA_ERROR_INVALID_VALUE"
        driver.copy_to_device(address, b"kept")
        assert driver.copy_from_device(address, 4) == b"kept"
        driver.mem_free(address)
        assert kept() == [64, 0]
        driver.graph_launch(executable, stream)
        driver.graph_exec_destroy(executable)
        driver.graph_destroy(graph)
        driver.mem_free_async(address, stream)
        driver.graph_memory_trim()
        assert (taken(before), kept()) == (0, [0, 0])
        again = driver.graph_instantiate(driver.memory_graph(30 * MIB, free=False), GRAPH_AUTO_FREE)
        for _ in range(3):
            driver.graph_launch(again, stream)
            assert kept() == [32, 30]

    machine.python(program)


def test_captured_allocations(machine: Machine) -> None:
    def program() -> None:
        stream = driver.stream(STREAM_NON_BLOCKING)
        before = driver.mem_used()

        with driver.capture(stream) as graphs:
            address = driver.mem_alloc_async(40 * MIB, stream)
            driver.mem_free_async(address, stream)
            other = driver.mem_alloc_async(60 * MIB, stream, pool=driver.default_pool())
            driver.mem_free_async(other, stream)
        assert taken(before) == 0 and driver.pool_attribute(driver.default_pool(), POOL_RESERVED_CURRENT) == 0
        driver.graph_launch(driver.graph_instantiate(graphs[0]), stream)
        assert (taken(before), kept()) == (64, [64, 0])

    machine.python(program)


def test_what_such_graphs_cannot(machine: Machine) -> None:
    def program() -> None:
        stream = driver.stream(STREAM_NON_BLOCKING)
        before = driver.mem_used()

        graph = driver.memory_graph(MIB)
        executable = driver.graph_instantiate(graph)
        out = ctypes.c_void_p()
        assert driver.result("cuGraphInstantiateWithFlags", byref(out), graph, 0) == "CUDA_ERROR_NOT_SUPPORTED"
        assert driver.result("cuGraphClone", byref(out), graph) == "CUDA_ERROR_NOT_SUPPORTED"
        assert driver.result("cuGraphAddChildGraphNode", byref(out), driver.graph(), None, 0, graph) == (
            "CUDA_ERROR_NOT_SUPPORTED"
        )
        driver.graph_exec_destroy(executable)
        executable = driver.graph_instantiate(graph)
        driver.begin_capture(stream)
        assert driver.result("cuGraphLaunch", executable, stream) == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        assert driver.is_capturing(stream) == 2
        driver.result("cuStreamEndCapture", stream, byref(out))
        free = driver.mem_get_info()[0] // (32 * MIB) * 32 * MIB
        large = driver.memory_graph(free + MIB)
        assert driver.result("cuGraphLaunch", driver.graph_instantiate(large), stream) == "CUDA_ERROR_OUT_OF_MEMORY"
        refused = failure(lambda: driver.graph_instantiate_uploaded(driver.memory_graph(free + MIB), stream))
        assert refused == "CUDA_ERROR_OUT_OF_MEMORY"
        assert taken(before) == 0
        driver.graph_launch(driver.graph_instantiate_uploaded(driver.memory_graph(free), stream), stream)

    machine.python(program)


def test_an_update_brings_other_sizes(machine: Machine) -> None:
    def program() -> None:
        stream = driver.stream(STREAM_NON_BLOCKING)

        executable = driver.graph_instantiate(driver.memory_graph(32 * MIB))
        driver.graph_update(executable, driver.memory_graph(96 * MIB))
        driver.graph_launch(executable, stream)
        assert kept() == [96, 0]
        not_alike = failure(lambda: driver.graph_update(executable, driver.memory_graph(32 * MIB, 32 * MIB)))
        assert not_alike == "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"

    machine.python(program)
