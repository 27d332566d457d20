"""Oversubscription on the simulated driver: past the device's share the host serves, and the device stays inside it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pynvml as nvml
import pytest
from sandbox import UUID, Sandbox

from cuda_driver import (
    AllocationProperties,
    CudaError,
    Driver,
    Location,
    byref,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)
from support.programs import Program, text_of
from vgpurun.limits import usage_file

pytestmark = pytest.mark.slow

MIB = 1 << 20
CONTEXT_MIB = 518
SHARE_OF_DATA_MIB = 2048 - 512  # the rest is kept for modules, which the host cannot hold
LIMITS = {"CUDA_OVERSUBSCRIBE": "true", "CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_MEMORY_SHARE": "2g"}


def print_device_mib() -> None:
    nvml.nvmlInit()
    print(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used >> 20)


PRINT_DEVICE_MIB = text_of(print_device_mib)


def device_mib() -> int:
    """Return what the device really holds, as a process that is not limited says it."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    command = [sys.executable, "-c", PRINT_DEVICE_MIB]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True).stdout)


def until_refused(allocate: Callable[[], int]) -> tuple[list[int], str]:
    held: list[int] = []
    refusal = ""
    while not refusal:
        try:
            held.append(allocate())
        except CudaError as error:
            refusal = error.name
    return held, refusal


def path_of(d: Driver, name: str) -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return what allocates 100 MiB in this way, and what frees it."""

    def physical() -> int:
        handle = d.mem_create(100 * MIB)
        address = d.address_reserve(100 * MIB)
        d.mem_map(address, 100 * MIB, handle)
        d.mem_release(handle)
        return address

    pool = d.pool_create()
    return {
        "plain": (lambda: d.mem_alloc(100 * MIB), d.mem_free),
        "pitch": (lambda: d.mem_alloc_pitch(1024 * 1024, 100)[0], d.mem_free),
        "managed": (lambda: d.mem_alloc_managed(100 * MIB), d.mem_free),
        "async": (lambda: d.mem_alloc_async(100 * MIB), d.mem_free_async),
        "pool": (lambda: d.mem_alloc_async(100 * MIB, pool=pool), d.mem_free_async),
        "plain, freed in stream order": (lambda: d.mem_alloc(100 * MIB), d.mem_free_async),
        "physical": (physical, lambda address: d.mem_unmap(address, 100 * MIB)),
    }[name]


PATHS = ("plain", "pitch", "managed", "async", "pool", "plain, freed in stream order", "physical")


@pytest.mark.parametrize("path", PATHS)
def test_the_surplus_is_on_the_host(sandbox: Sandbox, path: str) -> None:
    def program() -> None:
        d = Driver.started()
        allocate, free = path_of(d, path)
        total = d.mem_get_info()[1] // MIB
        held, refusal = until_refused(allocate)
        if path != "physical":
            for each in held:
                d.call("cuMemsetD8_v2", each, 1, 512)
        at_refusal = [device_mib(), d.mem_get_info()[0] // MIB]
        for each in held:
            free(each)
        d.synchronize()
        again, _ = until_refused(allocate)
        for each in again:
            free(each)
        d.synchronize()
        print(json.dumps([total, len(held), refusal, at_refusal, len(again), d.mem_get_info()[0] // MIB]))

    total_mib, granted, refusal, (used_mib, free_mib), again, afterwards_mib = json.loads(
        sandbox.python(program, **LIMITS)
    )
    assert total_mib == 8192
    assert (granted, refusal, again) == ((8192 - CONTEXT_MIB) // 100, "CUDA_ERROR_OUT_OF_MEMORY", granted)
    assert SHARE_OF_DATA_MIB - 100 - 32 <= used_mib <= SHARE_OF_DATA_MIB
    assert free_mib < 100 + 32
    assert afterwards_mib == 8192 - CONTEXT_MIB


def test_what_cannot_be_served_is_refused_at_the_share(sandbox: Sandbox) -> None:
    """Arrays, contexts and the 32-bit calls."""

    def program() -> None:
        d = Driver.started()
        arrays, refusal = until_refused(lambda: d.array(2560, 2560))
        refusals = [refusal, d.result("cuCtxCreate_v2", byref(c_void_p()), 0, 0)]
        print(json.dumps([len(arrays), refusals, device_mib()]))

    arrays, refusals, used_mib = json.loads(sandbox.python(program, **LIMITS))
    assert refusals == ["CUDA_ERROR_OUT_OF_MEMORY"] * 2
    assert arrays == 15
    assert used_mib <= 2048


def test_memory_of_the_host_looks_like_the_devices(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        d.mem_alloc(1400 * MIB)
        host = d.mem_alloc(300 * MIB)
        kind, where = c_uint(), c_int()
        d.call("cuPointerGetAttribute", byref(kind), 2, host)  # the type: 2 is device memory
        d.call("cuPointerGetAttribute", byref(where), 9, host)  # the device's number
        print(kind.value, where.value)

    assert sandbox.python(program, **LIMITS) == "2 0"


def test_one_range_of_the_device_and_the_host(sandbox: Sandbox) -> None:
    """PyTorch's expandable segments do so: access is set for many mappings at once."""

    def program() -> None:
        class Access(ctypes.Structure):
            _fields_ = [("location", Location), ("flags", c_int)]

        d, size = Driver.started(), 20 * MIB
        address = d.address_reserve(100 * size)
        for i in range(100):
            d.mem_map(address + i * size, size, d.mem_create(size))
        access = byref(Access(Location(1, 0), 3))
        d.call("cuMemSetAccess", c_uint64(address), c_size_t(100 * size), access, c_size_t(1))
        d.call("cuMemsetD8_v2", address, 1, 100 * size)
        exportable = AllocationProperties(type=1, requested_handle_types=1, location=Location(1, 0))
        print(device_mib(), d.result("cuMemCreate", byref(c_uint64()), size, byref(exportable), 0))

    used_mib, exportable = sandbox.python(program, **LIMITS).split()
    assert 1500 <= int(used_mib) <= SHARE_OF_DATA_MIB
    assert exportable == "CUDA_SUCCESS"  # though memory of the host cannot be shared by a file descriptor


def test_host_memory_is_counted_apart_and_dies_with_its_process(sandbox: Sandbox) -> None:
    def hold() -> None:
        d = Driver.started()
        d.mem_alloc(1000 * MIB)
        d.mem_alloc(700 * MIB)
        print("ready")
        input()

    def free_mib() -> None:
        print(Driver.started().mem_get_info()[0] // MIB)

    holder = sandbox.start_python(hold, **LIMITS)
    assert holder.stdout.readline() == "ready\n"
    (reading,) = usage_file.read_usage(sandbox.folder / "usage", [UUID]) or []
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
    def program() -> None:
        d = Driver()
        d.init()
        print(d.device_total_mem() >> 20)

    result = sandbox.run([sys.executable, "-c", text_of(program)], **variables)
    assert result.stdout.strip() == str(total_mib)
    assert (line in result.stderr) if line else (result.stderr == "")


def test_without_a_share_the_device_serves_what_it_has(sandbox: Sandbox) -> None:
    """The driver itself has no room for the last allocations: the host serves them."""

    def program() -> None:
        d = Driver.started()
        held, refusal = until_refused(lambda: d.mem_alloc(500 * MIB))
        print(json.dumps([len(held), refusal, device_mib()]))

    granted, refusal, used_mib = json.loads(
        sandbox.python(program, CUDA_OVERSUBSCRIBE="true", CUDA_DEVICE_MEMORY_LIMIT="12g")
    )
    assert (granted, refusal) == ((12288 - CONTEXT_MIB) // 500, "CUDA_ERROR_OUT_OF_MEMORY")
    assert 8192 - 512 - 500 <= used_mib <= 8192 - 512


def test_a_refusal_names_all_parts(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        until_refused(lambda: d.mem_alloc(100 * MIB))

    result = sandbox.run([sys.executable, "-c", text_of(program)], **LIMITS)
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
    def hold() -> None:
        Driver.started().mem_alloc(6 << 30)
        print("ready")
        input()

    holder = sandbox.start_python(hold, LD_PRELOAD="")
    assert holder.stdout.readline() == "ready\n"

    def filling(by: str) -> Program:
        def fill() -> None:
            allocate = getattr(Driver.started(), by)
            held, refusal = until_refused(lambda: allocate(200 * MIB))
            print(len(held), refusal)

        return fill

    for by in ("mem_alloc", "mem_alloc_async", "mem_create"):
        variables = {**LIMITS, "CUDA_DEVICE_MEMORY_SHARE": "6g"}
        assert sandbox.python(filling(by), **variables) == f"{(8192 - CONTEXT_MIB) // 200} CUDA_ERROR_OUT_OF_MEMORY"
    holder.kill()
    holder.wait()
