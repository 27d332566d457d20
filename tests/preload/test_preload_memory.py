"""The memory limit on the simulated driver: each path is counted, refused past the limit, and given back."""

from __future__ import annotations

import json

import pytest
from sandbox import UUID, Sandbox

MIB = 1 << 20
CONTEXT_MIB = 518

PRELUDE = """
import json
from cuda_driver import *
MIB = 1 << 20
d = Driver()
d.start()
used = lambda: d.mem_used() // MIB
def until_refused(allocate):
    held, refusal = [], ""
    while not refusal:
        try:
            held.append(allocate())
        except CudaError as error:
            refusal = error.name
    return held, refusal
"""

PATHS = {
    "plain": ("lambda: d.mem_alloc(100 * MIB)", "d.mem_free"),
    "odd": ("lambda: d.mem_alloc(99 * MIB + 1)", "d.mem_free"),
    "pitch": ("lambda: d.mem_alloc_pitch(1000 * 1000, 105)[0]", "d.mem_free"),
    "managed": ("lambda: d.mem_alloc_managed(100 * MIB)", "d.mem_free"),
    "async": ("lambda: d.mem_alloc_async(100 * MIB)", "d.mem_free_async"),
    "pool": ("lambda: d.mem_alloc_async(100 * MIB, pool=pool)", "d.mem_free_async"),
    "physical": ("lambda: d.mem_create(100 * MIB)", "d.mem_release"),
    "array": ("lambda: d.array(2560, 2560)", "d.array_destroy"),
    "3D array": ("lambda: d.array_3d(256, 256, 100)", "d.array_destroy"),
    "mipmapped array": ("lambda: d.mipmapped_array(2560, 2560, 1)", "d.mipmapped_array_destroy"),
}


@pytest.mark.parametrize("path", PATHS)
def test_refused_past_the_limit_and_given_back(sandbox: Sandbox, path: str) -> None:
    allocate, free = PATHS[path]
    code = PRELUDE + (
        f"pool = d.pool_create()\n"
        f"first, refusal = until_refused({allocate})\n"
        f"at_refusal = used()\n"
        f"for each in first: {free}(each)\n"
        f"d.synchronize()\n"
        f"afterwards = used()\n"
        f"again, _ = until_refused({allocate})\n"
        f"print(json.dumps([len(first), refusal, at_refusal, afterwards, len(again)]))"
    )
    granted, refusal, at_refusal_mib, afterwards_mib, again = json.loads(
        sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g")
    )
    assert (granted, refusal, again) == (15, "CUDA_ERROR_OUT_OF_MEMORY", 15)
    assert CONTEXT_MIB + 1500 <= at_refusal_mib <= 2048
    assert afterwards_mib == CONTEXT_MIB


def test_the_view(sandbox: Sandbox) -> None:
    code = PRELUDE + (
        "import pynvml\n"
        "pynvml.nvmlInit()\n"
        "handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "address = d.mem_alloc(500 * MIB)\n"
        "v1 = pynvml.nvmlDeviceGetMemoryInfo(handle)\n"
        "v2 = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)\n"
        "print(json.dumps([[x // MIB for x in each] for each in (\n"
        "  d.mem_get_info()[::-1], [d.device_total_mem(0), d.device_total_mem(1)],\n"
        "  [v1.total, v1.used, v1.free], [v2.total, v2.used, v2.free, v2.reserved])]))"
    )
    cuda, totals, v1, v2 = json.loads(sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT_0="2g"))
    used_mib = CONTEXT_MIB + 500
    assert cuda == [2048, 2048 - used_mib]
    assert totals == [2048, 8192]
    assert v1 == [2048, used_mib, 2048 - used_mib]
    assert v2 == [2048, used_mib, 2048 - used_mib, 0]


def test_a_request_larger_than_the_device(sandbox: Sandbox) -> None:
    code = PRELUDE + "print([d.result('cuMemAlloc_v2', byref(c_uint64()), size) for size in (1 << 40, 2**64 - 1, 0)])"
    names = sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert names == str(["CUDA_ERROR_OUT_OF_MEMORY"] * 2 + ["CUDA_ERROR_INVALID_VALUE"])


def test_errors_stay_the_drivers(sandbox: Sandbox) -> None:
    code = (
        "from cuda_driver import *\n"
        "d = Driver()\n"
        "results = [d.result('cuMemAlloc_v2', byref(c_uint64()), 4096), d.result('cuMemGetInfo_v2', None, None)]\n"
        "d.init()\n"
        "results += [d.result('cuMemAlloc_v2', byref(c_uint64()), 4096)]\n"
        "d.primary_context()\n"
        "results += [d.result('cuMemAlloc_v2', None, 4096), d.result('cuMemFree_v2', 12345),\n"
        "            d.result('cuMemGetInfo_v2', None, None), d.result('cuDeviceTotalMem_v2', None, 0),\n"
        "            d.result('cuMemAllocAsync', None, 4096, None), d.result('cuMemCreate', None, 2 << 20, None, 0),\n"
        "            d.result('cuLaunchKernelEx', None, None, None, None)]\n"
        "print(results)"
    )
    limits = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "50"}
    assert sandbox.python(code, **limits) == sandbox.python(code, LD_PRELOAD="")


def test_the_refused_call_leaves_its_output_alone(sandbox: Sandbox) -> None:
    code = PRELUDE + (
        "values = []\n"
        "for call, rest in (('cuMemAlloc_v2', ()), ('cuMemAllocAsync', (None,)), ('cuMemAllocManaged', (1,))):\n"
        "    output = c_uint64(77)\n"
        "    d.result(call, byref(output), 4 << 30, *rest)\n"
        "    values.append(output.value)\n"
        "print(values)"
    )
    assert sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g") == "[77, 77, 77]"


def test_physical_memory_lives_as_long_as_a_handle_or_a_mapping(sandbox: Sandbox) -> None:
    code = PRELUDE + (
        "size = 100 * MIB\n"
        "seen = []\n"
        "note = lambda: seen.append(used() - 518)\n"
        "handle = d.mem_create(size); note()\n"
        "address = d.address_reserve(size)\n"
        "d.mem_map(address, size, handle); note()\n"
        "d.mem_release(handle); note()\n"  # still mapped
        "d.mem_unmap(address, size); note()\n"
        "handle = d.mem_create(size)\n"
        "d.mem_map(address, size, handle)\n"
        "retained = c_uint64()\n"
        "d.call('cuMemRetainAllocationHandle', byref(retained), c_void_p(address))\n"
        "d.mem_unmap(address, size); note()\n"
        "d.mem_release(retained.value); note()\n"
        "d.mem_release(handle); note()\n"
        "print(seen)"
    )
    assert sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g") == "[100, 100, 100, 0, 100, 100, 0]"


def test_physical_memory_needs_no_context(sandbox: Sandbox) -> None:
    code = (
        "from cuda_driver import *\n"
        "d = Driver(); d.init()\n"
        "held = 0\n"
        "try:\n"
        "    while True: d.mem_create(100 << 20); held += 1\n"
        "except CudaError as error: print(held, error.name)"
    )
    assert sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g") == "20 CUDA_ERROR_OUT_OF_MEMORY"


def test_limits_go_by_device(sandbox: Sandbox) -> None:
    code = PRELUDE + (
        "granted = []\n"
        "for device in (0, 1):\n"
        "    d.primary_context(device)\n"
        "    granted.append([len(until_refused(lambda: d.mem_alloc(100 * MIB))[0]), d.mem_get_info()[1] // MIB])\n"
        "print(granted)"
    )
    limits = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT_1": "50%"}
    assert sandbox.python(code, **limits) == str([[15, 2048], [35, 4096]])
    # The index is NVML's: it stays with the device when CUDA numbers it differently.
    only_second = sandbox.python(PRELUDE + "print(d.mem_get_info()[1] // MIB)", CUDA_VISIBLE_DEVICES="1", **limits)
    assert only_second == "4096"


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
    import sys

    code = "from cuda_driver import *\nd = Driver(); d.init()\nprint(d.device_total_mem() >> 20)"
    result = sandbox.run([sys.executable, "-c", code], **limits)
    assert result.stdout.strip() == str(total_mib)
    assert (line in result.stderr) if line else (result.stderr == "")
    assert len(result.stderr.splitlines()) == (1 if line else 0)


def test_a_refusal_explains_itself_once(sandbox: Sandbox) -> None:
    import sys

    code = PRELUDE + "[d.result('cuMemAlloc_v2', byref(c_uint64()), 3 << 30) for _ in range(5)]"
    result = sandbox.run([sys.executable, "-c", code], CUDA_DEVICE_MEMORY_LIMIT="2g")
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
    assert sandbox.run([sys.executable, "-c", code], CUDA_DEVICE_MEMORY_LIMIT="2g", LIBCUDA_LOG_LEVEL="0").stderr == ""


def test_contexts_count_and_are_refused(sandbox: Sandbox) -> None:
    """Each takes 518 MiB of the device: three fit into 2 GiB, and one that is destroyed makes room for another."""
    code = (
        "from cuda_driver import *\n"
        "d = Driver(); d.init()\n"
        "contexts = [d.context_create() for _ in range(3)]\n"
        "refused = [d.result('cuCtxCreate_v2', byref(c_void_p()), 0, 0),\n"
        "           d.result('cuDevicePrimaryCtxRetain', byref(c_void_p()), 0)]\n"
        "d.context_destroy(contexts.pop())\n"
        "d.primary_context(); d.primary_context()\n"
        "print(refused, d.mem_get_info()[0] >> 20)"
    )
    refused = ["CUDA_ERROR_OUT_OF_MEMORY"] * 2
    assert sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g") == f"{refused} {2048 - 3 * CONTEXT_MIB}"


def test_what_ends_with_its_context_is_given_back(sandbox: Sandbox) -> None:
    """Destroyed, released for the last time, or reset: the allocations are gone without having been freed."""
    code = PRELUDE + (
        "d.call('cuDevicePrimaryCtxRelease_v2', 0)\n"
        "answers = []\n"
        "def fill():\n"
        "    answers.append(len(until_refused(lambda: d.mem_alloc(100 * MIB))[0]))\n"
        "for _ in range(2):\n"
        "    context = d.context_create(); fill(); d.context_destroy(context)\n"
        "    d.primary_context(); fill(); d.primary_context_release()\n"
        "    d.primary_context(); fill(); d.call('cuDevicePrimaryCtxReset_v2', 0)\n"
        "print(answers)"
    )
    assert sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g") == str([15] * 6)


BOUND = {
    "sparse array, unmapped": (
        "handle = d.mem_create(1000 * MIB, tile_pool=True); array = d.sparse_array(4096, 4096)",
        "d.map_tiles(array, handle)",
        "d.map_tiles(array, 0)",
    ),
    "sparse array, destroyed": (
        "handle = d.mem_create(1000 * MIB, tile_pool=True); array = d.sparse_array(4096, 4096)",
        "d.map_tiles(array, handle)",
        "d.array_destroy(array)",
    ),
    "multicast object": (
        "handle = d.mem_create(1000 * MIB); team = d.multicast(1000 * MIB)",
        "d.call('cuMulticastBindMem', team, 0, handle, 0, 1000 * MIB, 0)",
        "d.call('cuMulticastUnbind', team, 0, 0, 1000 * MIB)",
    ),
    "multicast object, by address": (
        "handle = d.mem_create(1000 * MIB); team = d.multicast(1000 * MIB); address = d.address_reserve(1000 * MIB)\n"
        "d.mem_map(address, 1000 * MIB, handle)",
        "d.call('cuMulticastBindAddr', team, 0, address, 1000 * MIB, 0); d.mem_unmap(address, 1000 * MIB)",
        "d.mem_release(team)",
    ),
}


@pytest.mark.parametrize("kind", BOUND)
def test_bound_memory_stays_counted(sandbox: Sandbox, kind: str) -> None:
    """The driver keeps it when its handle and its mappings are gone."""
    make, bind, unbind = BOUND[kind]
    code = PRELUDE + (
        f"{make}\n"
        "d.array_destroy(d.array(128, 128))  # NVML has just been asked\n"
        f"{bind}\nd.mem_release(handle)\n"
        "first, _ = until_refused(lambda: d.mem_alloc(100 * MIB))\n"
        f"shown = used()\n{unbind}\n"
        "second, _ = until_refused(lambda: d.mem_alloc(100 * MIB))\n"
        "print(json.dumps([len(first), shown, len(second)]))"
    )
    assert json.loads(sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT="2g")) == [5, 518 + 1000 + 500, 10]
