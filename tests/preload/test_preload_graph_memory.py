"""The memory that graphs allocate, under a limit on the simulated driver."""

from __future__ import annotations

import ctypes

import pytest
from refusals import MIB, OUT_OF_MEMORY, refused, used_mib
from sandbox import Sandbox

from cuda_driver import GRAPH_MEMORY_USED, STREAM_NON_BLOCKING, Driver

# Ways to make the driver take a graph's memory, and what gives the graph.
TAKE = ("launch", "upload", "per-thread launch", "per-thread upload")
MAKE = ("nodes", "nodes, not freed", "captured")


def started() -> tuple[Driver, int, int]:
    """Return the driver, a stream, and what is used at the start in MiB."""
    d = Driver.started()
    return d, d.stream(STREAM_NON_BLOCKING), used_mib(d)


def take_memory(d: Driver, way: str, executable: int, stream: int) -> None:
    match way:
        case "launch":
            d.graph_launch(executable, stream)
        case "upload":
            d.graph_upload(executable, stream)
        case "per-thread launch":
            d.call("cuGraphLaunch_ptsz", executable, ctypes.c_void_p(0))
        case "per-thread upload":
            d.call("cuGraphUpload_ptsz", ctypes.c_void_p(executable), ctypes.c_void_p(0))
        case _:
            raise ValueError(way)


def made_graph(d: Driver, way: str, stream: int, size_bytes: int) -> int:
    if way == "captured":
        with d.capture(stream) as graphs:
            d.mem_free_async(d.mem_alloc_async(size_bytes, stream), stream)
        return graphs[0]
    return d.memory_graph(size_bytes, free=way != "nodes, not freed")


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("make", MAKE)
def test_a_graph_that_passes_the_limit_is_refused_and_takes_nothing(sandbox: Sandbox, make: str, take: str) -> None:
    def program() -> None:
        d, stream, base = started()

        def run(size_bytes: int) -> None:
            graph = made_graph(d, make, stream, size_bytes)
            executable = d.graph_instantiate(graph)
            try:
                take_memory(d, take, executable, stream)
            finally:
                d.graph_exec_destroy(executable)
                d.graph_destroy(graph)

        held = d.mem_alloc(1000 * MIB)
        run(384 * MIB)
        assert used_mib(d) - base == 1384, used_mib(d)
        d.mem_free(held)
        assert refused(run, 1600 * MIB) == OUT_OF_MEMORY
        # Memory that earlier launches left allocated stays, the rest has gone back.
        left = d.graph_memory(GRAPH_MEMORY_USED) // MIB
        assert left <= used_mib(d) - base < left + 32, (used_mib(d), left)
        run(992 * MIB)
        assert used_mib(d) - base == left + 992

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_many_small_graphs_never_pass_the_limit(sandbox: Sandbox) -> None:
    def program() -> None:
        d, stream, base = started()
        held = []
        while True:
            executable = d.graph_instantiate(d.memory_graph(96 * MIB, free=False))
            if refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY:
                break
            held.append(executable)
        assert len(held) == 15 and base + 15 * 96 <= used_mib(d) <= 2048
        assert refused(d.mem_alloc, 100 * MIB) == OUT_OF_MEMORY

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_what_fits_at_its_peak_is_granted_though_its_sum_does_not(sandbox: Sandbox) -> None:
    def program() -> None:
        d, stream, base = started()
        executable = d.graph_instantiate(d.memory_graph(*[512 * MIB] * 10))
        for _ in range(3):
            d.graph_launch(executable, stream)
        assert used_mib(d) - base == 512
        assert refused(d.mem_alloc, 1400 * MIB) == "granted", "what graphs keep idle makes room"
        assert refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_instantiate_with_upload(sandbox: Sandbox) -> None:
    def program() -> None:
        d, stream, base = started()
        d.graph_instantiate_uploaded(d.memory_graph(512 * MIB), stream)
        assert used_mib(d) - base == 512
        assert refused(d.graph_instantiate_uploaded, d.memory_graph(1600 * MIB), stream) == OUT_OF_MEMORY
        assert used_mib(d) - base == 0

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_a_capture_is_never_broken_by_a_full_device(sandbox: Sandbox) -> None:
    def program() -> None:
        d, stream, _ = started()
        held = d.mem_alloc(1500 * MIB)
        with d.capture(stream) as graphs:
            address = d.mem_alloc_async(1000 * MIB, stream)
            d.mem_free_async(address, stream)
        executable = d.graph_instantiate(graphs[0])
        assert refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY
        d.mem_free(held)
        d.graph_launch(executable, stream)
        d.begin_capture(stream)
        assert refused(d.graph_launch, executable, stream) == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "as without us"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_trimmed_memory_is_free_again(sandbox: Sandbox) -> None:
    def program() -> None:
        d, stream, base = started()
        d.graph_launch(d.graph_instantiate(d.memory_graph(992 * MIB)), stream)
        assert used_mib(d) - base == 992
        d.graph_memory_trim()
        assert used_mib(d) == base

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_an_updated_graph_is_held_to_its_new_size(sandbox: Sandbox) -> None:
    def program() -> None:
        d, stream, base = started()
        executable = d.graph_instantiate(d.memory_graph(32 * MIB))
        d.graph_update(executable, d.memory_graph(1600 * MIB))
        assert refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY
        assert used_mib(d) == base
        d.graph_update(executable, d.memory_graph(992 * MIB))
        d.graph_launch(executable, stream)

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")
