"""The memory that graphs allocate, under a limit on the simulated driver."""

from __future__ import annotations

import pytest
from sandbox import Sandbox

PRELUDE = """
from cuda_driver import *
MIB = 1 << 20
d = Driver()
d.start()
stream = d.stream(STREAM_NON_BLOCKING)
used = lambda: d.mem_used() // MIB
def refused(call, *arguments):
    try:
        call(*arguments)
    except CudaError as error:
        return error.name
    return "granted"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
base = used()
"""

# Ways to make the driver take a graph's memory: what gives an executable graph of a graph, and what takes.
TAKE = {
    "launch": "d.graph_launch(executable, stream)",
    "upload": "d.graph_upload(executable, stream)",
    "per-thread launch": "d.call('cuGraphLaunch_ptsz', executable, ctypes.c_void_p(0))",
    "per-thread upload": "d.call('cuGraphUpload_ptsz', ctypes.c_void_p(executable), ctypes.c_void_p(0))",
}
MAKE = {
    "nodes": "d.memory_graph(*sizes)",
    "nodes, not freed": "d.memory_graph(*sizes, free=False)",
    "captured": "captured(*sizes)",
}
CAPTURED = """
def captured(*sizes):
    with d.capture(stream) as graphs:
        for size in sizes:
            d.mem_free_async(d.mem_alloc_async(size, stream), stream)
    return graphs[0]
"""


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("make", MAKE)
def test_a_graph_that_passes_the_limit_is_refused_and_takes_nothing(sandbox: Sandbox, make: str, take: str) -> None:
    code = f"""
import ctypes
{CAPTURED}
def run(*sizes):
    graph = {MAKE[make]}
    executable = d.graph_instantiate(graph)
    try:
        {TAKE[take]}
    finally:
        d.graph_exec_destroy(executable)
        d.graph_destroy(graph)
held = d.mem_alloc(1000 * MIB)
run(384 * MIB)
assert used() - base == 1384, used()
d.mem_free(held)
"""
    code += """
assert refused(run, 1600 * MIB) == OUT_OF_MEMORY
# Memory that earlier launches left allocated stays, the rest has gone back.
left = d.graph_memory(GRAPH_MEMORY_USED) // MIB
assert left <= used() - base < left + 32, (used(), left)
run(992 * MIB)
assert used() - base == left + 992
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_many_small_graphs_never_pass_the_limit(sandbox: Sandbox) -> None:
    code = """
held = []
while True:
    executable = d.graph_instantiate(d.memory_graph(96 * MIB, free=False))
    if refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY:
        break
    held.append(executable)
assert len(held) == 15 and base + 15 * 96 <= used() <= 2048
assert refused(d.mem_alloc, 100 * MIB) == OUT_OF_MEMORY
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_what_fits_at_its_peak_is_granted_though_its_sum_does_not(sandbox: Sandbox) -> None:
    code = """
executable = d.graph_instantiate(d.memory_graph(*[512 * MIB] * 10))
for _ in range(3):
    d.graph_launch(executable, stream)
assert used() - base == 512
assert refused(d.mem_alloc, 1400 * MIB) == "granted", "what graphs keep idle makes room"
assert refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_instantiate_with_upload(sandbox: Sandbox) -> None:
    code = """
d.graph_instantiate_uploaded(d.memory_graph(512 * MIB), stream)
assert used() - base == 512
assert refused(d.graph_instantiate_uploaded, d.memory_graph(1600 * MIB), stream) == OUT_OF_MEMORY
assert used() - base == 0
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_a_capture_is_never_broken_by_a_full_device(sandbox: Sandbox) -> None:
    code = """
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
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_trimmed_memory_is_free_again(sandbox: Sandbox) -> None:
    code = """
d.graph_launch(d.graph_instantiate(d.memory_graph(992 * MIB)), stream)
assert used() - base == 992
d.graph_memory_trim()
assert used() == base
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_an_updated_graph_is_held_to_its_new_size(sandbox: Sandbox) -> None:
    code = """
executable = d.graph_instantiate(d.memory_graph(32 * MIB))
d.graph_update(executable, d.memory_graph(1600 * MIB))
assert refused(d.graph_launch, executable, stream) == OUT_OF_MEMORY
assert used() == base
d.graph_update(executable, d.memory_graph(992 * MIB))
d.graph_launch(executable, stream)
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2g")
