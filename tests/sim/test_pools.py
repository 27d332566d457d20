"""Stream-ordered pools, and virtual memory management."""

from __future__ import annotations

import ctypes

from simulated import MIB, Machine, driver

from cuda_driver import (
    POOL_RELEASE_THRESHOLD,
    POOL_RESERVED_CURRENT,
    POOL_RESERVED_HIGH,
    POOL_USED_CURRENT,
    POOL_USED_HIGH,
    AllocationProperties,
    Location,
    byref,
)


def test_a_pool_reserves_in_steps_and_gives_back(machine: Machine) -> None:
    def program() -> None:
        pool, before = driver.default_pool(), driver.mem_used()

        def state():
            return [driver.pool_attribute(pool, a) // MIB for a in (POOL_RESERVED_CURRENT, POOL_USED_CURRENT)], (
                driver.mem_used() - before
            ) // MIB

        first = driver.mem_alloc_async(20 * MIB)
        assert state() == ([32, 20], 32)
        second = driver.mem_alloc_async(20 * MIB)
        assert state() == ([64, 40], 64)
        driver.mem_free_async(first)
        assert state() == ([64, 20], 64), "kept until a synchronisation"
        driver.synchronize()
        assert state() == ([32, 20], 32)
        driver.pool_set_attribute(pool, POOL_RELEASE_THRESHOLD, 2**64 - 1)
        driver.mem_free_async(second)
        driver.stream_synchronize()
        assert state() == ([32, 0], 32), "kept for the threshold"
        driver.call("cuMemPoolTrimTo", pool, 0)
        assert state() == ([0, 0], 0)
        assert driver.pool_attribute(pool, POOL_RESERVED_HIGH) == 64 * MIB
        assert driver.pool_attribute(pool, POOL_USED_HIGH) == 40 * MIB
        driver.pool_set_attribute(pool, POOL_USED_HIGH, 0)
        assert driver.pool_attribute(pool, POOL_USED_HIGH) == 0

    machine.python(program)


def test_unused_reserve_makes_room_for_others(machine: Machine) -> None:
    def program() -> None:
        pool = driver.default_pool()
        driver.pool_set_attribute(pool, POOL_RELEASE_THRESHOLD, 2**64 - 1)
        free, _ = driver.mem_get_info()
        driver.mem_free_async(driver.mem_alloc_async(free - 64 * MIB))
        driver.synchronize()
        assert driver.mem_get_info()[0] < 100 * MIB
        driver.mem_free(driver.mem_alloc(free // 2))
        big = driver.mem_alloc_async(free - 64 * MIB)
        driver.mem_free(big)

    machine.python(program)


def test_pools_of_the_program(machine: Machine) -> None:
    def program() -> None:
        before = driver.mem_used()
        pool = driver.pool_create(maximum_bytes=64 * MIB)
        address = driver.mem_alloc_async(40 * MIB, pool=pool)
        out = ctypes.c_uint64()
        call = ("cuMemAllocFromPoolAsync", byref(out), 40 * MIB, pool, 0)
        assert driver.result(*call) == "CUDA_ERROR_OUT_OF_MEMORY", "the pool's own maximum"
        driver.call("cuDeviceSetMemPool", 0, pool)
        small = [driver.mem_alloc_async(1000) for _ in range(1000)]
        assert driver.pool_attribute(pool, POOL_USED_CURRENT) == 40 * MIB + 1000 * 1024
        driver.call("cuMemPoolDestroy", pool)
        assert driver.result(*call) == "CUDA_ERROR_INVALID_VALUE"
        driver.mem_free_async(address)
        for address in small:
            driver.mem_free_async(address)
        driver.synchronize()
        assert driver.mem_used() == before, "a destroyed pool goes with its last allocation"
        driver.mem_free_async(driver.mem_alloc_async(1))
        assert driver.result("cuMemPoolDestroy", driver.default_pool()) == "CUDA_ERROR_INVALID_VALUE"

    machine.python(program)


def test_the_last_context_takes_the_pools_memory_with_it(machine: Machine) -> None:
    def program() -> None:
        driver.context_create(1)
        driver.primary_context()
        for size in (1000, 5 * MIB):
            driver.mem_alloc_async(size)
        driver.call("cuDevicePrimaryCtxReset_v2", 0)
        driver.primary_context()
        print(driver.mem_used() // MIB, driver.pool_attribute(driver.default_pool(), POOL_USED_CURRENT))

    assert machine.python(program) == "518 0"


def test_physical_memory_lives_with_its_handle_and_its_mappings(machine: Machine) -> None:
    def program() -> None:
        driver.init()
        out, size = ctypes.c_uint64(), 6 * MIB
        properties = AllocationProperties(type=1, location=Location(1, 0))
        driver.call("cuMemGetAllocationGranularity", byref(out), byref(properties), 0)
        assert out.value == 2 * MIB
        handle = driver.mem_create(size)  # needs no context
        assert driver.result("cuMemCreate", byref(out), size + 1, byref(properties), 0) == "CUDA_ERROR_INVALID_VALUE"
        address = driver.address_reserve(16 * MIB)
        driver.mem_map(address + 2 * MIB, size, handle)
        clash = ("cuMemMap", address, size, 0, handle, 0)
        assert driver.result(*clash) == "CUDA_ERROR_INVALID_VALUE"
        driver.primary_context()
        used = driver.mem_used()
        data = ("cuMemcpyHtoD_v2", address + 2 * MIB, b"data", 4)
        assert driver.result(*data) == "CUDA_ERROR_INVALID_VALUE", "no access yet"

        class Access(ctypes.Structure):
            _fields_ = [("location", Location), ("flags", ctypes.c_int)]

        driver.call(
            "cuMemSetAccess",
            ctypes.c_uint64(address + 2 * MIB),
            ctypes.c_size_t(size),
            byref(Access(Location(1, 0), 3)),
            ctypes.c_size_t(1),
        )
        assert driver.result(*data) == "CUDA_SUCCESS"
        driver.mem_release(handle)
        assert driver.mem_used() == used, "still mapped"
        assert driver.result("cuMemRelease", handle) == "CUDA_ERROR_INVALID_VALUE"
        again = ctypes.c_uint64()
        driver.call("cuMemRetainAllocationHandle", byref(again), ctypes.c_void_p(address + 3 * MIB))
        assert again.value == handle
        assert driver.result("cuMemAddressFree", address, 16 * MIB) == "CUDA_ERROR_INVALID_VALUE", "mapped"
        assert driver.result("cuMemUnmap", address + 2 * MIB, 2 * MIB) == "CUDA_ERROR_INVALID_VALUE", "a part"
        driver.mem_unmap(address + 2 * MIB, size)
        assert driver.mem_used() == used
        driver.mem_release(handle)
        assert used - driver.mem_used() == size
        driver.call("cuMemAddressFree", address, 16 * MIB)
        free, _ = driver.mem_get_info()
        properties = AllocationProperties(type=1, location=Location(1, 0))
        assert (
            driver.result("cuMemCreate", byref(out), free + 2 * MIB, byref(properties), 0) == "CUDA_ERROR_OUT_OF_MEMORY"
        )

    machine.python(program, start=False)
