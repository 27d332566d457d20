"""The memory limit on the simulated driver: each path is counted, refused past the limit, and given back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pynvml
import pytest
from refusals import MIB, used_mib
from sandbox import UUID, Sandbox

from cuda_driver import CudaError, Driver, byref, c_uint64, c_void_p
from support.programs import text_of

CONTEXT_MIB = 518

PATHS = (
    "plain",
    "odd",
    "pitch",
    "managed",
    "async",
    "pool",
    "physical",
    "array",
    "3D array",
    "mipmapped array",
)


def calls_of(d: Driver, path: str) -> tuple[Callable[[], int], Callable[[int], None]]:
    """Return what allocates about 100 MiB, and what frees them."""
    pool = d.pool_create()
    return {
        "plain": (lambda: d.mem_alloc(100 * MIB), d.mem_free),
        "odd": (lambda: d.mem_alloc(99 * MIB + 1), d.mem_free),
        "pitch": (lambda: d.mem_alloc_pitch(1000 * 1000, 105)[0], d.mem_free),
        "managed": (lambda: d.mem_alloc_managed(100 * MIB), d.mem_free),
        "async": (lambda: d.mem_alloc_async(100 * MIB), d.mem_free_async),
        "pool": (lambda: d.mem_alloc_async(100 * MIB, pool=pool), d.mem_free_async),
        "physical": (lambda: d.mem_create(100 * MIB), d.mem_release),
        "array": (lambda: d.array(2560, 2560), d.array_destroy),
        "3D array": (lambda: d.array_3d(256, 256, 100), d.array_destroy),
        "mipmapped array": (lambda: d.mipmapped_array(2560, 2560, 1), d.mipmapped_array_destroy),
    }[path]


def until_refused(allocate: Callable[[], int]) -> tuple[list[int], str]:
    """Return all that is granted, and the name of the error then."""
    held: list[int] = []
    while True:
        try:
            held.append(allocate())
        except CudaError as error:
            return held, error.name


def granted(d: Driver) -> int:
    """Fill the device, and return how many times 100 MiB fit."""
    return len(until_refused(lambda: d.mem_alloc(100 * MIB))[0])


@pytest.mark.parametrize("path", PATHS)
def test_refused_past_the_limit_and_given_back(sandbox: Sandbox, path: str) -> None:
    def program() -> None:
        d = Driver.started()
        allocate, free = calls_of(d, path)
        first, refusal = until_refused(allocate)
        at_refusal_mib = used_mib(d)
        for each in first:
            free(each)
        d.synchronize()
        afterwards_mib = used_mib(d)
        again, _ = until_refused(allocate)
        print(json.dumps([len(first), refusal, at_refusal_mib, afterwards_mib, len(again)]))

    first, refusal, at_refusal_mib, afterwards_mib, again = json.loads(
        sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")
    )
    assert (first, refusal, again) == (15, "CUDA_ERROR_OUT_OF_MEMORY", 15)
    assert CONTEXT_MIB + 1500 <= at_refusal_mib <= 2048
    assert afterwards_mib == CONTEXT_MIB


def test_the_view(sandbox: Sandbox) -> None:

    def program() -> None:
        d = Driver.started()
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        d.mem_alloc(500 * MIB)
        v1 = pynvml.nvmlDeviceGetMemoryInfo(handle)
        v2 = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        shown = (
            d.mem_get_info()[::-1],
            [d.device_total_mem(0), d.device_total_mem(1)],
            [v1.total, v1.used, v1.free],
            [v2.total, v2.used, v2.free, v2.reserved],
        )
        print(json.dumps([[size // MIB for size in each] for each in shown]))

    cuda, totals, v1, v2 = json.loads(sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT_0="2g"))
    used_mib = CONTEXT_MIB + 500
    assert cuda == [2048, 2048 - used_mib]
    assert totals == [2048, 8192]
    assert v1 == [2048, used_mib, 2048 - used_mib]
    assert v2 == [2048, used_mib, 2048 - used_mib, 0]


def test_a_request_larger_than_the_device(sandbox: Sandbox) -> None:

    def program() -> None:
        d = Driver.started()
        print([d.result("cuMemAlloc_v2", byref(c_uint64()), size) for size in (1 << 40, 2**64 - 1, 0)])

    names = sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert names == str(["CUDA_ERROR_OUT_OF_MEMORY"] * 2 + ["CUDA_ERROR_INVALID_VALUE"])


def test_errors_stay_the_drivers(sandbox: Sandbox) -> None:

    def program() -> None:
        d = Driver()
        results = [d.result("cuMemAlloc_v2", byref(c_uint64()), 4096), d.result("cuMemGetInfo_v2", None, None)]
        d.init()
        results += [d.result("cuMemAlloc_v2", byref(c_uint64()), 4096)]
        d.primary_context()
        results += [
            d.result("cuMemAlloc_v2", None, 4096),
            d.result("cuMemFree_v2", 12345),
            d.result("cuMemGetInfo_v2", None, None),
            d.result("cuDeviceTotalMem_v2", None, 0),
            d.result("cuMemAllocAsync", None, 4096, None),
            d.result("cuMemCreate", None, 2 << 20, None, 0),
            d.result("cuLaunchKernelEx", None, None, None, None),
        ]
        print(results)

    limits = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "50"}
    assert sandbox.python(program, **limits) == sandbox.python(program, LD_PRELOAD="")


def test_the_refused_call_leaves_its_output_alone(sandbox: Sandbox) -> None:

    def program() -> None:
        d, values = Driver.started(), []
        for call, rest in (("cuMemAlloc_v2", ()), ("cuMemAllocAsync", (None,)), ("cuMemAllocManaged", (1,))):
            output = c_uint64(77)
            d.result(call, byref(output), 4 << 30, *rest)
            values.append(output.value)
        print(values)

    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g") == "[77, 77, 77]"


def test_physical_memory_lives_as_long_as_a_handle_or_a_mapping(sandbox: Sandbox) -> None:

    def program() -> None:
        d, size, seen = Driver.started(), 100 * MIB, []

        def note() -> None:
            seen.append(used_mib(d) - CONTEXT_MIB)

        handle = d.mem_create(size)
        note()
        address = d.address_reserve(size)
        d.mem_map(address, size, handle)
        note()
        d.mem_release(handle)
        note()  # still mapped
        d.mem_unmap(address, size)
        note()
        handle = d.mem_create(size)
        d.mem_map(address, size, handle)
        retained = c_uint64()
        d.call("cuMemRetainAllocationHandle", byref(retained), c_void_p(address))
        d.mem_unmap(address, size)
        note()
        d.mem_release(retained.value)
        note()
        d.mem_release(handle)
        note()
        print(seen)

    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g") == "[100, 100, 100, 0, 100, 100, 0]"


def test_physical_memory_needs_no_context(sandbox: Sandbox) -> None:

    def program() -> None:
        d = Driver()
        d.init()
        held, refusal = until_refused(lambda: d.mem_create(100 << 20))
        print(len(held), refusal)

    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g") == "20 CUDA_ERROR_OUT_OF_MEMORY"


def test_limits_go_by_device(sandbox: Sandbox) -> None:

    def program() -> None:
        d, seen = Driver.started(), []
        for device in (0, 1):
            d.primary_context(device)
            seen.append([granted(d), d.mem_get_info()[1] // MIB])
        print(seen)

    def print_total() -> None:
        print(Driver.started().mem_get_info()[1] // MIB)

    limits = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "50%"}
    assert sandbox.python(program, **limits) == str([[15, 2048], [35, 4096]])
    # The index is NVML's: it stays with the device when CUDA numbers it differently.
    assert sandbox.python(print_total, CUDA_VISIBLE_DEVICES="1", **limits) == "4096"


@pytest.mark.parametrize(
    ("limits", "total_mib", "line"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2GB"}, 2048, ""),
        ({"WRAPPER_MAX_MEMORY": "1073741824"}, 1024, ""),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "16g"}, 8192, ""),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "-1g"}, 0, "CUDA_DEVICE_MEMORY_LIMIT='-1g'"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2x", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}, 1024, ""),
        ({"CUDA_DEVICE_SM_LIMIT": "50"}, 8192, ""),
        ({}, 8192, ""),
    ],
)
def test_values_of_the_variables(sandbox: Sandbox, limits: dict[str, str], total_mib: int, line: str) -> None:
    def program() -> None:
        d = Driver()
        d.init()
        print(d.device_total_mem() >> 20)

    result = sandbox.run([sys.executable, "-c", text_of(program)], **limits)
    assert result.stdout.strip() == str(total_mib)
    assert (line in result.stderr) if line else (result.stderr == "")
    assert len(result.stderr.splitlines()) == (1 if line else 0)


def test_a_refusal_explains_itself_once(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        for _ in range(5):
            d.result("cuMemAlloc_v2", byref(c_uint64()), 3 << 30)

    command = [sys.executable, "-c", text_of(program)]
    result = sandbox.run(command, CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert len(result.stderr.splitlines()) == 1
    for word in (
        UUID,
        "3072 MiB asked for",
        "0 MiB by this process",
        "0 MiB by others",
        "518 MiB overhead",
        "limit 2048 MiB",
    ):
        assert word in result.stderr
    assert sandbox.run(command, CUDA_DEVICE_MEMORY_LIMIT="2g", LIBCUDA_LOG_LEVEL="0").stderr == ""


def test_contexts_count_and_are_refused(sandbox: Sandbox) -> None:
    """Each takes 518 MiB of the device: three fit into 2 GiB, and one that is destroyed makes room for another."""

    def program() -> None:
        d = Driver()
        d.init()
        contexts = [d.context_create() for _ in range(3)]
        refused = [
            d.result("cuCtxCreate_v2", byref(c_void_p()), 0, 0),
            d.result("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0),
        ]
        d.context_destroy(contexts.pop())
        d.primary_context()
        d.primary_context()
        print(refused, d.mem_get_info()[0] >> 20)

    refused = ["CUDA_ERROR_OUT_OF_MEMORY"] * 2
    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g") == f"{refused} {2048 - 3 * CONTEXT_MIB}"


def test_what_ends_with_its_context_is_given_back(sandbox: Sandbox) -> None:
    """Destroyed, released for the last time, or reset: the allocations are gone without having been freed."""

    def program() -> None:
        d, answers = Driver.started(), []
        d.call("cuDevicePrimaryCtxRelease_v2", 0)
        for _ in range(2):
            context = d.context_create()
            answers.append(granted(d))
            d.context_destroy(context)
            d.primary_context()
            answers.append(granted(d))
            d.primary_context_release()
            d.primary_context()
            answers.append(granted(d))
            d.call("cuDevicePrimaryCtxReset_v2", 0)
        print(answers)

    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g") == str([15] * 6)


BOUND = (
    "sparse array, unmapped",
    "sparse array, destroyed",
    "multicast object",
    "multicast object, by address",
)


def made_to_bind(d: Driver, kind: str) -> tuple[int, Callable[[], None], Callable[[], None]]:
    """Return the handle of 1000 MiB, what binds them to an object, and what ends that."""
    size = 1000 * MIB
    if kind.startswith("sparse array"):
        handle, array = d.mem_create(size, tile_pool=True), d.sparse_array(4096, 4096)
        ends = {"unmapped": lambda: d.map_tiles(array, 0), "destroyed": lambda: d.array_destroy(array)}
        return handle, lambda: d.map_tiles(array, handle), ends[kind.split(", ")[1]]
    handle, team = d.mem_create(size), d.multicast(size)
    if kind == "multicast object":
        return (
            handle,
            lambda: d.call("cuMulticastBindMem", team, 0, handle, 0, size, 0),
            lambda: d.call("cuMulticastUnbind", team, 0, 0, size),
        )
    address = d.address_reserve(size)
    d.mem_map(address, size, handle)

    def bind() -> None:
        d.call("cuMulticastBindAddr", team, 0, address, size, 0)
        d.mem_unmap(address, size)

    return handle, bind, lambda: d.mem_release(team)


@pytest.mark.parametrize("kind", BOUND)
def test_bound_memory_stays_counted(sandbox: Sandbox, kind: str) -> None:
    """The driver keeps it when its handle and its mappings are gone."""

    def program() -> None:
        d = Driver.started()
        handle, bind, unbind = made_to_bind(d, kind)
        d.array_destroy(d.array(128, 128))  # NVML has just been asked
        bind()
        d.mem_release(handle)
        first, shown_mib = granted(d), used_mib(d)
        unbind()
        print(json.dumps([first, shown_mib, granted(d)]))

    assert json.loads(sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")) == [5, 518 + 1000 + 500, 10]
