"""Devices, and contexts on them."""

from __future__ import annotations

import ctypes

import pytest
from simulated import MIB, UUID_A, UUID_B, Machine, driver

from cuda_driver import byref, in_threads


def test_what_a_device_says_of_itself(machine: Machine) -> None:
    def program() -> None:
        driver.init()
        print(driver.device_count(), driver.device_name(1), driver.device_uuid(1), driver.device_total_mem(1) // MIB)
        print(driver.device_attribute(16), driver.device_attribute(75), driver.device_attribute(10))
        text, device = ctypes.create_string_buffer(16), ctypes.c_int()
        driver.call("cuDeviceGetPCIBusId", text, 16, 1)
        driver.call("cuDeviceGetByPCIBusId", byref(device), text)
        print(text.value.decode(), device.value)
        out = ctypes.c_int()
        print(
            driver.result("cuDeviceGet", byref(out), 2),
            driver.result("cuDeviceGetAttribute", byref(out), 9999, 0),
            driver.result("cuDeviceGetByPCIBusId", byref(out), b"0000:77:00.0"),
            driver.result("cuDeviceGetCount", None),
        )

    lines = machine.python(program, start=False).splitlines()
    assert lines[0] == f"2 Simulated B {UUID_B} 4096"
    assert lines[1] == "132 9 32"
    assert lines[2] == "0000:02:00.0 1"
    invalid = "CUDA_ERROR_INVALID_VALUE"
    assert lines[3].split() == ["CUDA_ERROR_INVALID_DEVICE", invalid, invalid, invalid]


def test_how_many_blocks_a_multiprocessor_has_room_for(machine: Machine) -> None:
    def program() -> None:
        kernel, blocks = driver.kernel("any"), ctypes.c_int(-1)
        ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        for threads, shared_bytes in ((1, 0), (65, 0), (1024, 0), (128, 227 << 10), (128, 99 << 10), (128, 228 << 10)):
            driver.call(ask, byref(blocks), kernel, threads, shared_bytes)
            print(blocks.value, end=" ")
        invalid = [driver.result(ask, byref(blocks), kernel, threads, 0) for threads in (0, -1, 1025)]
        print(set(invalid), driver.result(ask, byref(blocks), 1, 32, 0), driver.result(ask, None, kernel, 32, 0))

    said = machine.python(program).split()
    assert said[:6] == ["32", "21", "2", "1", "2", "0"]
    assert said[6:] == ["{'CUDA_ERROR_INVALID_VALUE'}", "CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_VALUE"]


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", [UUID_B]),
        ("1,0", [UUID_B, UUID_A]),
        ("0,9,1", [UUID_A]),
        (UUID_B, [UUID_B]),
        ("GPU-aabb", [UUID_B]),
        ("gpu-aabb", None),
        ("GPU-aa", None),
        ("0,0", None),
        ("", None),
        ("-1", None),
        (f"{UUID_B}, 0", [UUID_B, UUID_A]),
        ("MIG-1234", None),
    ],
)
def test_cuda_visible_devices(machine: Machine, visible: str, uuids: list[str] | None) -> None:
    def program() -> None:
        name = driver.result("cuInit", 0)
        print(name, *([driver.device_uuid(i) for i in range(driver.device_count())] if name == "CUDA_SUCCESS" else []))

    expected = ["CUDA_ERROR_NO_DEVICE"] if uuids is None else ["CUDA_SUCCESS", *uuids]
    assert machine.python(program, start=False, CUDA_VISIBLE_DEVICES=visible).split() == expected


THREE_DEVICES = """
devices:
  - uuid: GPU-11111111-0000-0000-0000-000000000000
    multiprocessors: 100
  - uuid: GPU-22222222-0000-0000-0000-000000000000
  - uuid: GPU-33333333-0000-0000-0000-000000000000
    compute_capability: 10.0
"""


@pytest.mark.parametrize(
    ("variables", "order"),
    [
        ({}, "321"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "321"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "123"),
        ({"CUDA_DEVICE_ORDER": "nonsense"}, "321"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "13"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,0"}, "31"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2,0"}, "23"),
    ],
)
def test_cuda_device_order(machine: Machine, variables: dict[str, str], order: str) -> None:
    machine.configure(THREE_DEVICES)

    def program() -> None:
        driver.init()
        print(*[driver.device_uuid(i)[4] for i in range(driver.device_count())], sep="")

    assert machine.python(program, start=False, **variables) == order


def test_each_context_costs_memory_on_its_own_device(machine: Machine) -> None:
    def program() -> None:
        driver.primary_context()
        assert driver.mem_used() == 518 * MIB, "retaining again costs nothing"
        other = driver.context_create()
        assert driver.mem_used() == 2 * 518 * MIB
        address = driver.mem_alloc(10 * MIB)
        on_b = driver.context_create(1)
        assert driver.mem_used() == 100 * MIB
        driver.context_destroy(on_b)
        driver.context_destroy(other)
        primary = driver.primary_context()
        assert driver.mem_used() == 518 * MIB, "a context takes its memory with it"
        assert driver.result("cuMemFree_v2", address) == "CUDA_ERROR_INVALID_VALUE"
        driver.set_current(primary)
        for _ in range(3):
            driver.primary_context_release()
        assert driver.result("cuMemAlloc_v2", byref(ctypes.c_uint64()), 1) == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
        assert driver.result("cuDevicePrimaryCtxRelease_v2", 0) == "CUDA_ERROR_INVALID_CONTEXT"
        driver.context_create()
        assert driver.mem_used() == 518 * MIB
        assert driver.result("cuCtxDestroy_v2", primary) == "CUDA_ERROR_INVALID_CONTEXT"

    machine.python(program)


def test_a_green_context_retains_the_primary_one(machine: Machine) -> None:
    def program() -> None:
        driver.init()
        green, other = driver.green_context(), driver.green_context(1)
        stream = driver.green_context_stream(green)
        driver.set_current(driver.green_context_converted(green))
        assert driver.mem_used() == 518 * MIB
        driver.launch(driver.kernel("spin_1ms"), stream)
        driver.stream_synchronize(stream)
        driver.stream_destroy(stream)
        assert driver.primary_context() == driver.green_context_converted(green)
        driver.primary_context_release()
        driver.mem_alloc(10 * MIB)
        driver.green_context_destroy(green)
        driver.set_current(driver.green_context_converted(other))
        assert driver.mem_used() == 100 * MIB
        driver.primary_context()
        assert driver.mem_used() == 518 * MIB, "the last reference has taken the memory with it"
        out = ctypes.c_void_p()
        invalid = "CUDA_ERROR_INVALID_CONTEXT"
        assert driver.result("cuGreenCtxDestroy", green) == invalid
        assert driver.result("cuCtxFromGreenCtx", byref(out), green) == invalid
        assert driver.result("cuGreenCtxStreamCreate", byref(out), green, 1, 0) == invalid
        assert driver.result("cuGreenCtxStreamCreate", byref(out), other, 0, 0) == "CUDA_ERROR_INVALID_VALUE"
        assert driver.result("cuGreenCtxCreate", byref(out), None, 0, 0) == "CUDA_ERROR_INVALID_VALUE"

    machine.python(program, start=False)


def test_the_stack_of_contexts(machine: Machine) -> None:
    def program() -> None:
        primary, out = driver.primary_context(), ctypes.c_void_p()

        def current():
            driver.call("cuCtxGetCurrent", byref(out))
            return out.value

        other = driver.context_create(1)
        assert current() == other
        device = ctypes.c_int()
        driver.call("cuCtxGetDevice", byref(device))
        assert device.value == 1
        driver.call("cuCtxPushCurrent_v2", ctypes.c_void_p(primary))
        driver.call("cuCtxPopCurrent_v2", byref(out))
        assert out.value == primary and current() == other
        seen = []
        in_threads([lambda: seen.append(driver.result("cuMemAlloc_v2", byref(ctypes.c_uint64()), 1))])
        assert seen == ["CUDA_ERROR_INVALID_CONTEXT"], "each thread has a stack of its own"
        driver.context_destroy(other)
        assert current() == primary, "a current context that is destroyed is popped"
        assert driver.result("cuCtxSetCurrent", other) == "CUDA_ERROR_INVALID_CONTEXT"
        flags, active = ctypes.c_uint(), ctypes.c_int()
        driver.call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
        assert active.value == 1
        driver.call("cuDevicePrimaryCtxGetState", 1, byref(flags), byref(active))
        assert active.value == 0
        assert driver.result("cuCtxCreate_v2", byref(out), 0xFF00, 0) == "CUDA_ERROR_INVALID_VALUE"
        assert driver.result("cuCtxCreate_v2", None, 0, 0) == "CUDA_ERROR_INVALID_VALUE"
        assert driver.result("cuCtxCreate_v4", byref(out), None, 0, 0) == "CUDA_SUCCESS"

    machine.python(program)


def test_nothing_works_before_init(machine: Machine) -> None:
    def program() -> None:
        out = ctypes.c_uint64()
        for call in [
            ("cuMemAlloc_v2", byref(out), 1),
            ("cuDeviceGetCount", byref(out)),
            ("cuCtxGetCurrent", byref(out)),
            ("cuLaunchKernelEx", None, None, None, None),
            ("cuMemGetInfo_v2", None, None),
            ("cuEventQuery", None),
            ("cuDevicePrimaryCtxRetain", byref(out), 0),
            ("cuCtxSynchronize",),
            ("cuMemFree_v2", 0),
        ]:
            assert driver.result(*call) == "CUDA_ERROR_NOT_INITIALIZED", call
        assert driver.result("cuInit", 1) == "CUDA_ERROR_INVALID_VALUE"
        assert driver.version() == 13000

    machine.python(program, start=False)
