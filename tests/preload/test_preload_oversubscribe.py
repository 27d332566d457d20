"""Oversubscription on the simulated driver: past the device's share the host serves, and the device stays inside it."""

from __future__ import annotations

import json
import sys

import pytest
from sandbox import UUID, Sandbox

from vgpurun.limits import usage_file

pytestmark = pytest.mark.slow

MIB = 1 << 20
CONTEXT_MIB = 518
SHARE_OF_DATA_MIB = 2048 - 512  # the rest is kept for modules, which the host cannot hold
LIMITS = {"CUDA_OVERSUBSCRIBE": "true", "CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_MEMORY_SHARE": "2g"}

# A process that is not limited says what the device really holds.
PRELUDE = """
import json, os, subprocess, sys
from cuda_driver import *
MIB = 1 << 20
d = Driver()
d.start()
def device_mib():
    code = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetMemoryInfo(nvmlDeviceGetHandleByIndex(0)).used >> 20)"
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return int(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout)
def until_refused(allocate):
    held, refusal = [], ""
    while not refusal:
        try:
            held.append(allocate())
        except CudaError as error:
            refusal = error.name
    return held, refusal
def physical():
    handle = d.mem_create(100 * MIB)
    address = d.address_reserve(100 * MIB)
    d.mem_map(address, 100 * MIB, handle)
    d.mem_release(handle)
    return address
def physical_free(address):
    d.mem_unmap(address, 100 * MIB)
"""

PATHS = {
    "plain": ("lambda: d.mem_alloc(100 * MIB)", "d.mem_free"),
    "pitch": ("lambda: d.mem_alloc_pitch(1024 * 1024, 100)[0]", "d.mem_free"),
    "managed": ("lambda: d.mem_alloc_managed(100 * MIB)", "d.mem_free"),
    "async": ("lambda: d.mem_alloc_async(100 * MIB)", "d.mem_free_async"),
    "pool": ("lambda: d.mem_alloc_async(100 * MIB, pool=pool)", "d.mem_free_async"),
    "plain, freed in stream order": ("lambda: d.mem_alloc(100 * MIB)", "d.mem_free_async"),
    "physical": ("physical", "physical_free"),
}


@pytest.mark.parametrize("path", PATHS)
def test_the_surplus_is_on_the_host(sandbox: Sandbox, path: str) -> None:
    allocate, free = PATHS[path]
    touch = "" if path == "physical" else "for each in held: d.call('cuMemsetD8_v2', each, 1, 512)\n"
    code = PRELUDE + (
        f"pool = d.pool_create()\n"
        f"total = d.mem_get_info()[1] // MIB\n"
        f"held, refusal = until_refused({allocate})\n"
        f"{touch}"
        f"at_refusal = [device_mib(), d.mem_get_info()[0] // MIB]\n"
        f"for each in held: {free}(each)\n"
        f"d.synchronize()\n"
        f"again, _ = until_refused({allocate})\n"
        f"for each in again: {free}(each)\n"
        f"d.synchronize()\n"
        f"print(json.dumps([total, len(held), refusal, at_refusal, len(again), d.mem_get_info()[0] // MIB]))"
    )
    total_mib, granted, refusal, (device_mib, free_mib), again, afterwards_mib = json.loads(
        sandbox.python(code, **LIMITS)
    )
    assert total_mib == 8192
    assert (granted, refusal, again) == ((8192 - CONTEXT_MIB) // 100, "CUDA_ERROR_OUT_OF_MEMORY", granted)
    assert SHARE_OF_DATA_MIB - 100 - 32 <= device_mib <= SHARE_OF_DATA_MIB
    assert free_mib < 100 + 32
    assert afterwards_mib == 8192 - CONTEXT_MIB


def test_what_cannot_be_served_is_refused_at_the_share(sandbox: Sandbox) -> None:
    """Arrays, contexts and the 32-bit calls."""
    code = PRELUDE + (
        "arrays, refusal = until_refused(lambda: d.array(2560, 2560))\n"
        "refusals = [refusal, d.result('cuCtxCreate_v2', byref(c_void_p()), 0, 0)]\n"
        "print(json.dumps([len(arrays), refusals, device_mib()]))"
    )
    arrays, refusals, device_mib = json.loads(sandbox.python(code, **LIMITS))
    assert refusals == ["CUDA_ERROR_OUT_OF_MEMORY"] * 2
    assert arrays == 15
    assert device_mib <= 2048


def test_memory_of_the_host_looks_like_the_devices(sandbox: Sandbox) -> None:
    code = PRELUDE + (
        "device = d.mem_alloc(1400 * MIB)\n"
        "host = d.mem_alloc(300 * MIB)\n"
        "kind, where = c_uint(), c_int()\n"
        "d.call('cuPointerGetAttribute', byref(kind), 2, host)\n"  # the type: 2 is device memory
        "d.call('cuPointerGetAttribute', byref(where), 9, host)\n"  # the device's number
        "print(kind.value, where.value)"
    )
    assert sandbox.python(code, **LIMITS) == "2 0"


def test_one_range_of_the_device_and_the_host(sandbox: Sandbox) -> None:
    """As PyTorch's expandable segments: access is set for many mappings at once."""
    code = PRELUDE + (
        "class Access(ctypes.Structure):\n"
        "    _fields_ = [('location', Location), ('flags', c_int)]\n"
        "size = 20 * MIB\n"
        "address = d.address_reserve(100 * size)\n"
        "for i in range(100): d.mem_map(address + i * size, size, d.mem_create(size))\n"
        "access = byref(Access(Location(1, 0), 3))\n"
        "d.call('cuMemSetAccess', c_uint64(address), c_size_t(100 * size), access, c_size_t(1))\n"
        "d.call('cuMemsetD8_v2', address, 1, 100 * size)\n"
        "exportable = AllocationProperties(type=1, requested_handle_types=1, location=Location(1, 0))\n"
        "print(device_mib(), d.result('cuMemCreate', byref(c_uint64()), size, byref(exportable), 0))"
    )
    device_mib, exportable = sandbox.python("import ctypes\n" + code, **LIMITS).split()
    assert 1500 <= int(device_mib) <= SHARE_OF_DATA_MIB
    assert exportable == "CUDA_SUCCESS"  # though memory of the host cannot be shared by a file descriptor


def test_host_memory_is_counted_apart_and_dies_with_its_process(sandbox: Sandbox) -> None:
    holder = sandbox.start_python(
        PRELUDE + "d.mem_alloc(1000 * MIB); d.mem_alloc(700 * MIB); print('ready'); input()", **LIMITS
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    (reading,) = usage_file.read_usage(sandbox.folder / "usage", [UUID]) or []
    free_mib = PRELUDE + "print(d.mem_get_info()[0] // MIB)"
    beside = int(sandbox.python(free_mib, **LIMITS))
    holder.kill()
    holder.wait()
    assert reading.host_bytes == 700 * MIB
    assert reading.allocated_bytes == 1000 * MIB
    assert beside == 8192 - 2 * CONTEXT_MIB - 1700
    assert int(sandbox.python(free_mib, **LIMITS)) == 8192 - CONTEXT_MIB


@pytest.mark.parametrize(
    ("variables", "total_mib", "line"),
    [
        ({"CUDA_OVERSUBSCRIBE": "true", "CUDA_DEVICE_MEMORY_LIMIT": "16g"}, 16384, ""),
        ({"CUDA_OVERSUBSCRIBE": "false", "CUDA_DEVICE_MEMORY_LIMIT": "2g"}, 2048, ""),
        ({"CUDA_OVERSUBSCRIBE": "1", "CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_SHARE_0": "1g"}, 4096, ""),
        ({"CUDA_OVERSUBSCRIBE": "maybe", "CUDA_DEVICE_MEMORY_LIMIT": "2g"}, 2048, "CUDA_OVERSUBSCRIBE='maybe'"),
        (
            {"CUDA_OVERSUBSCRIBE": "true", "CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_MEMORY_SHARE": "x"},
            2048,
            "CUDA_DEVICE_MEMORY_SHARE='x'",
        ),
    ],
)
def test_values_of_the_variables(sandbox: Sandbox, variables: dict[str, str], total_mib: int, line: str) -> None:
    code = "from cuda_driver import *\nd = Driver(); d.init()\nprint(d.device_total_mem() >> 20)"
    result = sandbox.run([sys.executable, "-c", code], **variables)
    assert result.stdout.strip() == str(total_mib)
    assert (line in result.stderr) if line else (result.stderr == "")


def test_without_a_share_the_device_serves_what_it_has(sandbox: Sandbox) -> None:
    """The driver itself has no room for the last allocations: the host serves them."""
    code = PRELUDE + (
        "held, refusal = until_refused(lambda: d.mem_alloc(500 * MIB))\n"
        "print(json.dumps([len(held), refusal, device_mib()]))"
    )
    granted, refusal, device_mib = json.loads(
        sandbox.python(code, CUDA_OVERSUBSCRIBE="true", CUDA_DEVICE_MEMORY_LIMIT="12g")
    )
    assert (granted, refusal) == ((12288 - CONTEXT_MIB) // 500, "CUDA_ERROR_OUT_OF_MEMORY")
    assert 8192 - 512 - 500 <= device_mib <= 8192 - 512


def test_a_refusal_names_all_parts(sandbox: Sandbox) -> None:
    code = PRELUDE + "until_refused(lambda: d.mem_alloc(100 * MIB))"
    result = sandbox.run([sys.executable, "-c", code], **LIMITS)
    (line,) = result.stderr.splitlines()
    for words in (
        "100 MiB asked for",
        "1000 MiB by this process",
        "518 MiB overhead",
        "6600 MiB of the host",
        "limit 8192 MiB",
    ):
        assert words in line


def test_the_host_serves_too_where_others_hold_the_device(sandbox: Sandbox) -> None:
    holder = sandbox.start_python(
        "from cuda_driver import *\nd = Driver(); d.start(); d.mem_alloc(6 << 30); print('ready'); input()",
        LD_PRELOAD="",
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    for allocate in ("d.mem_alloc(200 * MIB)", "d.mem_alloc_async(200 * MIB)", "d.mem_create(200 * MIB)"):
        code = PRELUDE + f"held, refusal = until_refused(lambda: {allocate})\nprint(len(held), refusal)"
        variables = {**LIMITS, "CUDA_DEVICE_MEMORY_SHARE": "6g"}
        assert sandbox.python(code, **variables) == f"{(8192 - CONTEXT_MIB) // 200} CUDA_ERROR_OUT_OF_MEMORY"
    holder.kill()
    holder.wait()
