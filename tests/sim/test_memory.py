"""Memory: its costs, and refusals."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
from simulated import MIB, Machine, driver

from cuda_driver import byref


@pytest.mark.parametrize(
    ("size", "cost_mib"),
    [(MIB + 1, 2), (2 * MIB, 2), (2 * MIB + 1, 4), (MIB, 2), (1, 2), (100 * MIB, 100)],
)
def test_memory_comes_in_pages_of_2_mib(machine: Machine, size: int, cost_mib: int) -> None:
    def program() -> None:
        before = driver.mem_used()
        driver.mem_alloc(size)
        print((driver.mem_used() - before) // MIB)

    assert machine.python(program) == str(cost_mib)


def test_small_requests_share_blocks(machine: Machine) -> None:
    def program() -> None:
        before = driver.mem_used()
        addresses = [driver.mem_alloc(256) for _ in range(20000)]
        print((driver.mem_used() - before) // MIB, len(set(addresses)))
        for address in addresses[::2] + addresses[1::2]:
            driver.mem_free(address)
        print(driver.mem_used() - before)

    assert machine.python(program).split() == ["10", "20000", "0"]


def test_allocations_never_overlap(machine: Machine) -> None:
    def program() -> None:
        import random

        random.seed(7)
        live = {}
        for _ in range(4000):
            if live and random.random() < 0.45:
                address = random.choice(list(live))
                del live[address]
                driver.mem_free(address)
            else:
                size = random.choice([1, 300, 5000, 70000, MIB, MIB + 1, 5 * MIB])
                live[driver.mem_alloc(size)] = size
            ranges = sorted(live.items())
            assert all(a + n <= b for (a, n), (b, _) in pairwise(ranges))

    machine.python(program)


def test_a_full_device_refuses_and_recovers(machine: Machine) -> None:
    def program() -> None:
        free, total = driver.mem_get_info()
        address = ctypes.c_uint64(7)
        assert driver.result("cuMemAlloc_v2", byref(address), free + 1) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert address.value == 7, "the output stays untouched"
        whole = driver.mem_alloc(free)
        assert driver.mem_get_info() == (0, total)
        for call in ["cuMemAlloc_v2"]:
            assert driver.result(call, byref(address), 1) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert driver.result("cuMemAllocAsync", byref(address), 1, 0) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert driver.result("cuCtxCreate_v2", byref(address), 0, 0) == "CUDA_ERROR_OUT_OF_MEMORY"
        driver.mem_free(whole)
        driver.mem_free(driver.mem_alloc(free))

    machine.python(program)


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1, (1 << 64) - (1 << 20)])
def test_absurd_sizes_are_refused(machine: Machine, size: int) -> None:
    def program() -> None:
        out = ctypes.c_uint64()
        print(driver.result("cuMemAlloc_v2", byref(out), size), driver.result("cuMemAllocAsync", byref(out), size, 0))
        print(driver.result("cuMemAllocManaged", byref(out), size, 1))
        print(driver.result("cuMemHostAlloc", byref(out), ctypes.c_size_t(size), 0))

    assert set(machine.python(program).split()) == {"CUDA_ERROR_OUT_OF_MEMORY"}


def test_pitch_managed_and_host_memory(machine: Machine) -> None:
    def program() -> None:
        before = driver.mem_used()
        address, pitch = driver.mem_alloc_pitch(1000, 4096)
        assert pitch == 1024 and driver.mem_used() - before == 4 * MIB
        managed = driver.mem_alloc_managed(64 * MIB)
        ctypes.memset(managed, 3, 4096)
        assert driver.mem_used() - before == 4 * MIB, "managed memory costs nothing until the device touches it"
        assert driver.copy_from_device(managed, 4) == bytes([3] * 4)
        host = ctypes.c_void_p()
        driver.call("cuMemHostAlloc", byref(host), ctypes.c_size_t(8 * MIB), 0)
        ctypes.memset(host, 1, 8 * MIB)
        assert driver.mem_used() - before == 4 * MIB
        driver.call("cuMemFreeHost", host)
        assert driver.result("cuMemFreeHost", host) == "CUDA_ERROR_INVALID_VALUE"
        driver.mem_free(managed)
        driver.mem_free(address)
        assert driver.mem_used() == before

    machine.python(program)


def test_wrong_calls(machine: Machine) -> None:
    def program() -> None:
        out = ctypes.c_uint64()
        address = driver.mem_alloc(4096)
        other = driver.mem_alloc(4096)
        invalid = [
            ("cuMemAlloc_v2", None, 1),
            ("cuMemAlloc_v2", byref(out), 0),
            ("cuMemFree_v2", 12345),
            ("cuMemFree_v2", address + 512),
            ("cuMemGetInfo_v2", None, None),
            ("cuMemGetInfo_v2", byref(out), None),
            ("cuMemAllocPitch_v2", byref(out), None, 1, 1, 4),
            ("cuMemAllocPitch_v2", byref(out), byref(out), 1, 1, 5),
        ]
        for call in invalid:
            assert driver.result(*call) == "CUDA_ERROR_INVALID_VALUE", call
        driver.mem_free(address)
        assert driver.result("cuMemFree_v2", address) == "CUDA_ERROR_INVALID_VALUE", "freed twice"
        driver.mem_free(0)
        driver.set_current(0)
        assert driver.result("cuMemAlloc_v2", byref(out), 1) == "CUDA_ERROR_INVALID_CONTEXT"
        assert driver.result("cuMemFree_v2", other) == "CUDA_ERROR_INVALID_CONTEXT"

    machine.python(program)


def test_data_survives_the_device(machine: Machine) -> None:
    def program() -> None:
        data = bytes(range(256)) * 64
        small, large = driver.mem_alloc(len(data)), driver.mem_alloc(3 * MIB)
        for address in (small, large, large + 12345):
            driver.copy_to_device(address, data)
            assert driver.copy_from_device(address, len(data)) == data
        driver.call("cuMemcpyDtoD_v2", ctypes.c_uint64(small), ctypes.c_uint64(large + 12345 + 1), ctypes.c_size_t(100))
        assert driver.copy_from_device(small, 100) == data[1:101]
        driver.call("cuMemsetD8_v2", large, 9, 3 * MIB)
        assert driver.copy_from_device(large + 3 * MIB - 2, 2) == bytes([9, 9])
        driver.call(
            "cuMemsetD2D32_v2",
            ctypes.c_uint64(large),
            ctypes.c_size_t(64),
            0x01020304,
            ctypes.c_size_t(2),
            ctypes.c_size_t(2),
        )
        assert driver.copy_from_device(large, 80) == bytes([4, 3, 2, 1] * 2 + [9] * 56 + [4, 3, 2, 1] * 2 + [9] * 8)
        end = ("cuMemcpyHtoD_v2", large + 3 * MIB - 1, data, 2)
        assert driver.result(*end) == "CUDA_ERROR_INVALID_VALUE", "past the end"
        assert driver.result("cuMemsetD8_v2", large, 0, 3 * MIB + 1) == "CUDA_ERROR_INVALID_VALUE"

    machine.python(program)


def test_large_allocations_keep_no_data(machine: Machine) -> None:
    machine.configure("kept_data_mib: 1\n")

    def program() -> None:
        address = driver.mem_alloc(2 * MIB)
        driver.copy_to_device(address, b"lost")
        print(driver.copy_from_device(address, 4))

    assert machine.python(program) == r"b'\x00\x00\x00\x00'"


def test_the_first_version_of_the_api(machine: Machine) -> None:
    def program() -> None:
        import platform

        out, free, total = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        before = driver.mem_used()
        if platform.machine() == "x86_64":
            driver.call("cuMemAlloc", byref(out), 3 * MIB)
            assert driver.mem_used() - before == 4 * MIB
            driver.call("cuMemFree", out)
        assert driver.mem_used() == before
        driver.call("cuMemGetInfo", byref(free), byref(total))
        assert total.value == 2**32 - 1, "8 GiB do not fit"

    machine.python(program)


def test_arrays_cost_what_they_were_measured_to_cost(machine: Machine) -> None:
    def program() -> None:
        class Descriptor(ctypes.Structure):
            _fields_ = [
                ("width", ctypes.c_size_t),
                ("height", ctypes.c_size_t),
                ("format", ctypes.c_int),
                ("channels", ctypes.c_uint),
            ]

        before = driver.mem_used()
        array = ctypes.c_void_p()
        for width, height in [(1000, 1000), (5000, 3000)]:
            driver.call("cuArrayCreate_v2", byref(array), byref(Descriptor(width, height, 0x20, 4)))
            print(round((driver.mem_used() - before) / 1e6, 1))
            driver.call("cuArrayDestroy", array)
            assert driver.result("cuArrayDestroy", array) == "CUDA_ERROR_INVALID_HANDLE"
        assert driver.mem_used() == before
        huge = Descriptor(1 << 40, 1 << 40, 0x20, 4)
        assert driver.result("cuArrayCreate_v2", byref(array), byref(huge)) == "CUDA_ERROR_OUT_OF_MEMORY"

    assert machine.python(program).split() == ["16.8", "247.5"]


def test_pointer_attributes(machine: Machine) -> None:
    def program() -> None:
        address = driver.mem_alloc(3 * MIB)
        value = ctypes.c_uint64()

        def attribute(number, at=address + 5):
            value.value = 0
            driver.call("cuPointerGetAttribute", byref(value), number, ctypes.c_uint64(at))
            return value.value

        assert attribute(2) == 2, "device memory"
        assert attribute(9) == 0 and attribute(8) == 0
        assert attribute(11) == address and attribute(12) == 3 * MIB
        assert attribute(8, driver.mem_alloc_managed(4096)) == 1
        assert driver.result("cuPointerGetAttribute", byref(value), 2, ctypes.c_uint64(1)) == "CUDA_ERROR_INVALID_VALUE"

    machine.python(program)


def test_bound_memory_is_kept(machine: Machine) -> None:
    """By tiles of sparse arrays and by multicast objects, until they let go of it."""

    def program() -> None:
        before, seen = driver.mem_used(), []

        def note():
            seen.append((driver.mem_used() - before) // MIB)

        array = driver.sparse_array(4096, 4096)
        handle = driver.mem_create(100 * MIB, tile_pool=True)
        driver.map_tiles(array, handle)
        driver.mem_release(handle)
        note()
        driver.map_tiles(array, 0)
        note()
        handle = driver.mem_create(100 * MIB)
        print(driver.result("cuMulticastBindMem", driver.multicast(2 * MIB), 0, handle, 0, 100 * MIB, 0))
        team = driver.multicast(100 * MIB)
        driver.call("cuMulticastBindMem", team, 0, handle, 0, 100 * MIB, 0)
        driver.mem_release(handle)
        note()
        driver.mem_release(team)
        note()
        print(seen)

    assert machine.python(program) == "CUDA_ERROR_INVALID_VALUE\n[100, 0, 100, 0]"
