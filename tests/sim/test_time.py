"""The timeline: streams, events, launches."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from functools import partial

import pytest
from simulated import MIB, Machine, driver, late_by, near, on_host, timed

from cuda_driver import EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, byref, in_threads
from support import go_on_together

pytestmark = pytest.mark.real_time


def test_kernels_take_the_time_of_their_name_or_table(machine: Machine) -> None:
    machine.configure("default_kernel_us: 300\nkernels:\n  - name: matmul\n    duration_us: 2500.5\n")

    def program() -> None:
        for name, milliseconds in [
            ("spin_5ms", 5),
            ("spin_700us", 0.7),
            ("matmul", 2.5),
            ("other", 0.3),
            ("a_0.5ms", 0.5),
        ]:
            launch = partial(driver.launch, driver.kernel(name))
            near(partial(timed, launch), milliseconds)
            near(partial(on_host, launch), milliseconds, 0.1 + late_by(milliseconds))

    machine.python(program)


def test_every_way_to_launch(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("spin_2ms")
        near(lambda: timed(lambda: driver.launch(kernel, symbol="cuLaunchKernel")), 2)
        near(lambda: timed(lambda: driver.launch_ex(kernel)), 2)
        near(lambda: timed(lambda: driver.launch_cooperative(kernel)), 2)
        library, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuLibraryLoadData", byref(library), b"image", None, None, 0, None, None, 0)
        driver.call("cuLibraryGetKernel", byref(function), library, b"spin_2ms")
        near(lambda: timed(lambda: driver.launch(function.value)), 2)
        driver.call("cuLibraryUnload", library)
        call = ("cuLaunchKernel", function.value, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
        assert driver.result(*call) == "CUDA_ERROR_INVALID_HANDLE"
        for sizes in [(0, 1, 1, 1, 1, 1), (1, 1, 1, 1025, 1, 1), (1, 1, 1, 32, 32, 2), (1, 65536, 1, 1, 1, 1)]:
            call = ("cuLaunchKernel", kernel, *sizes, 0, 0, None, None)
            assert driver.result(*call) == "CUDA_ERROR_INVALID_VALUE", call
        call = ("cuLaunchCooperativeKernel", kernel, 100000, 1, 1, 1024, 1, 1, 0, 0, None)
        assert driver.result(*call) == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
        assert driver.result("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, 0, None, None) == "CUDA_ERROR_INVALID_HANDLE"

    machine.python(program)


def test_events(machine: Machine) -> None:
    def program() -> None:
        kernel, event = driver.kernel("spin_2ms"), driver.event()
        assert driver.event_is_done(event), "an event that was never recorded is done"
        untimed, milliseconds = driver.event(EVENT_DISABLE_TIMING), ctypes.c_float()

        def elapsed(a: object, b: object) -> str:
            return str(driver.result("cuEventElapsedTime", byref(milliseconds), a, b))

        assert elapsed(event, event) == "CUDA_ERROR_INVALID_HANDLE", "not recorded"
        driver.event_record(event)
        driver.event_record(untimed)
        assert elapsed(event, untimed) == "CUDA_ERROR_INVALID_HANDLE"
        end = driver.event()
        driver.launch(kernel)
        driver.event_record(end)
        driver.event_synchronize(end)
        assert driver.event_is_done(end)
        elapsed_ms = driver.event_elapsed_ms(event, end)
        assert elapsed_ms >= 2 and driver.event_elapsed_ms(end, event) == -elapsed_ms
        ticks = driver.event_elapsed_ms(event, end) / 0.0005
        assert abs(ticks - round(ticks)) < 0.01, "half a microsecond is the resolution"
        driver.call("cuEventDestroy_v2", end)
        assert driver.result("cuEventQuery", end) == "CUDA_ERROR_INVALID_HANDLE"
        assert driver.result("cuEventRecord", end, 0) == "CUDA_ERROR_INVALID_HANDLE"
        assert driver.result("cuEventElapsedTime", None, event, event) == "CUDA_ERROR_INVALID_VALUE"
        end = driver.event()
        driver.launch(driver.kernel("spin_30s"))
        driver.event_record(end)
        assert not driver.event_is_done(end) and driver.event_is_done(event)
        assert elapsed(event, end) == "CUDA_ERROR_NOT_READY"

    machine.python(program)


def test_who_waits_for_whom(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("spin_30s")
        blocking, free = driver.stream(), driver.stream(STREAM_NON_BLOCKING)
        driver.launch(kernel, blocking)
        legacy_event, free_event = driver.event(), driver.event()
        driver.event_record(legacy_event, 0)
        driver.event_record(free_event, free)
        assert driver.event_is_done(free_event), "a non-blocking stream does not wait"
        assert not driver.event_is_done(legacy_event), "the legacy stream waits for blocking streams"
        assert driver.stream_is_done(free) and not driver.stream_is_done(blocking) and not driver.stream_is_done(0)
        driver.stream_wait_event(free, legacy_event)
        assert not driver.stream_is_done(free), "now it waits"

    machine.python(program)

    def program() -> None:
        blocking, event = driver.stream(), driver.event()
        driver.launch(driver.kernel("spin_30s"), 0)
        driver.event_record(event, blocking)
        assert not driver.event_is_done(event), "blocking streams wait for the legacy stream"

    machine.python(program)


def test_a_wait_ends_with_the_work(machine: Machine) -> None:
    def program() -> None:
        kernel, event = driver.kernel("spin_20ms"), driver.event()
        blocking, free = driver.stream(), driver.stream(STREAM_NON_BLOCKING)
        driver.launch(kernel, blocking)
        driver.event_record(event, 0)
        driver.stream_wait_event(free, event)
        driver.stream_synchronize(free)
        assert driver.stream_is_done(blocking)
        began = time.monotonic()
        driver.launch(kernel, 0)
        driver.launch(kernel, free)
        driver.stream_destroy(free)
        driver.synchronize()
        assert time.monotonic() - began > 0.0399, "work of a destroyed stream goes on"
        assert driver.result("cuStreamSynchronize", free) == "CUDA_ERROR_INVALID_HANDLE"

    machine.python(program)


def test_per_thread_default_streams(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("spin_30s")
        ids = []

        def work():
            driver.primary_context()
            stream_id = ctypes.c_uint64()
            driver.call("cuStreamGetId_ptsz", None, byref(stream_id))
            ids.append(stream_id.value)
            assert driver.result("cuStreamQuery_ptsz", None) == "CUDA_SUCCESS"

        driver.launch(kernel, symbol="cuLaunchKernel_ptsz")
        assert driver.result("cuStreamQuery_ptsz", None) == "CUDA_ERROR_NOT_READY"
        in_threads([work])
        stream_id = ctypes.c_uint64()
        driver.call("cuStreamGetId", None, byref(stream_id))
        assert stream_id.value not in ids
        assert driver.result("cuStreamQuery", None) == "CUDA_ERROR_NOT_READY", (
            "the legacy stream waits for per-thread ones"
        )
        driver.call("cuStreamGetId", ctypes.c_void_p(2), byref(stream_id))
        again = ctypes.c_uint64()
        driver.call("cuStreamGetId_ptsz", None, byref(again))
        assert again.value == stream_id.value, "CU_STREAM_PER_THREAD"

    machine.python(program)


def test_the_launch_queue_is_bounded(machine: Machine) -> None:
    machine.configure("devices:\n  - launch_queue_depth: 4\n")

    def program() -> None:
        kernel = driver.kernel("spin_30s")
        for _ in range(4):
            driver.launch(kernel)
        assert not driver.stream_is_done(), "four go into the queue at once"
        fifth = threading.Thread(target=lambda: (driver.primary_context(), driver.launch(kernel)))
        fifth.start()
        fifth.join(0.3)
        os._exit(0 if fifth.is_alive() else 1)

    machine.python(program)

    def program() -> None:
        kernel = driver.kernel("spin_50ms")

        def until_the_fifth_is_in():
            driver.synchronize()
            began = time.monotonic()
            for _ in range(5):
                driver.launch(kernel)
            return (time.monotonic() - began) * 1000

        near(until_the_fifth_is_in, 50, 49)  # waits for the first, and for no other

    machine.python(program)


def test_launch_overhead(machine: Machine) -> None:
    machine.configure("devices:\n  - launch_overhead_us: 500\n")

    def program() -> None:
        kernel = driver.kernel("spin_1us")
        near(lambda: on_host(lambda: driver.launch(kernel)), 0.5, 4)

    machine.python(program)


def test_a_launch_costs_the_host_little(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("nothing_0us")
        launch = driver.function("cuLaunchKernel")
        best = 1.0
        for _ in range(400):  # one of which nothing disturbs
            began = time.process_time()
            for _ in range(100):
                launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
            best = min(best, (time.process_time() - began) / 100)
        print(best)

    assert float(machine.python(program)) < 5e-6, "with ctypes, which takes most of it"


def test_synchronous_copies_wait(machine: Machine) -> None:
    machine.configure("kept_data_mib: 0\n")  # the host's own time to move the bytes is not the device's

    def program() -> None:
        kernel, address = driver.kernel("spin_20ms"), driver.mem_alloc(48 * MIB)
        began = time.monotonic()
        driver.launch(kernel)
        driver.copy_from_device(address, 4)
        assert time.monotonic() - began > 0.0199
        data = bytes(48 * MIB)
        near(lambda: timed(lambda: driver.copy_to_device(address, data)), 2)  # 24 MiB per ms

    machine.python(program)


def test_processes_share_a_device(machine: Machine) -> None:
    """The work of both is done one piece after the other, however long a busy machine holds one of them up."""

    def program() -> None:
        kernel = driver.kernel("spin_5ms")
        driver.launch(kernel)
        driver.synchronize()
        print("ready")
        sys.stdin.readline()
        began, ends = time.monotonic(), []
        for _ in range(40):
            driver.launch(kernel)
            driver.synchronize()
            ends.append(time.monotonic())
        print(began, *ends)

    fair = 0
    while not fair:
        processes = [machine.start_python(program) for _ in range(2)]
        go_on_together(processes)
        one, other = [list(map(float, process.communicate(timeout=60)[0].split())) for process in processes]
        assert max(one[-1], other[-1]) - min(one[0], other[0]) > 80 * 0.005 - 0.001
        assert len(machine.started) < 20, "one always works while the other waits"
        meet_s = max(one[0], other[0]), min(one[-1], other[-1])
        fair = all(sum(meet_s[0] <= end <= meet_s[1] for end in ends) >= 20 for ends in (one[1:], other[1:]))


def test_kernels_that_wait_for_each_other(machine: Machine) -> None:
    def program() -> None:
        held, release, work = (driver.kernel(name) for name in ("held_until_release", "release", "spin_1ms"))
        first, second, third = driver.stream(), driver.stream(), driver.stream()
        for _ in range(3):
            event = driver.event()
            for kernel in (work, held, work):
                driver.launch(kernel, first)
            driver.event_record(event, first)
            driver.launch(work, second)
            driver.stream_synchronize(second)
            time.sleep(0.02)
            assert not driver.stream_is_done(first) and driver.stream_is_done(second)
            assert driver.result("cuEventQuery", event) == "CUDA_ERROR_NOT_READY"
            driver.launch(release, third)
            began = time.monotonic()
            driver.synchronize()
            assert time.monotonic() - began < 0.1 and driver.result("cuEventQuery", event) == "CUDA_SUCCESS"
        left, right = driver.kernel("left_until_right"), driver.kernel("right_until_left")
        for _ in range(3):
            for _ in range(2):
                driver.launch(left, first)
            for _ in range(2):
                assert not driver.stream_is_done(first)
                driver.launch(right, second)
            driver.synchronize()
            assert driver.stream_is_done(first)

    machine.python(program)
