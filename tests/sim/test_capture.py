"""Stream capture: what becomes a graph, and what spoils it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import pytest
from simulated import Machine, driver, near, on_host

from cuda_driver import CAPTURE_GLOBAL, CAPTURE_RELAXED, CAPTURE_THREAD_LOCAL, STREAM_NON_BLOCKING, byref, in_threads

UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
INVALIDATED = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


def in_thread(function: Callable[[], str]) -> str:
    """Return what a function returns in a thread of its own."""
    result: list[str] = []
    in_threads([lambda: (driver.primary_context(), result.append(function()))])
    return result[0]


def ending(stream: int, out: ctypes.c_uint64) -> str:
    """Return what the end of a capture answers."""
    return str(driver.result("cuStreamEndCapture", stream, byref(out)))


def test_a_graph_takes_the_time_of_its_kernels(machine: Machine) -> None:
    def program() -> None:
        kernel, stream = driver.kernel("spin_2ms"), driver.stream(STREAM_NON_BLOCKING)
        address = driver.mem_alloc(4096)

        with driver.capture(stream) as graphs:
            for _ in range(5):
                driver.launch(kernel, stream)
            driver.call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(address),
                ctypes.c_uint64(address),
                ctypes.c_size_t(8),
                ctypes.c_void_p(stream),
            )
            assert driver.is_capturing(stream) == 1
        assert driver.is_capturing(stream) == 0 and driver.stream_is_done(stream), "nothing ran"
        count, kind = ctypes.c_size_t(), ctypes.c_int()
        driver.call("cuGraphGetNodes", ctypes.c_void_p(graphs[0]), None, byref(count))
        nodes = (ctypes.c_void_p * 6)()
        driver.call("cuGraphGetNodes", ctypes.c_void_p(graphs[0]), nodes, byref(count))
        kinds = []
        for node in nodes:
            driver.call("cuGraphNodeGetType", ctypes.c_void_p(node), byref(kind))
            kinds.append(kind.value)
        assert kinds == [0, 0, 0, 0, 0, 1], kinds
        graph = driver.graph_instantiate(graphs[0])
        driver.graph_destroy(graphs[0])
        start, end = driver.event(), driver.event()

        def run_twice(launch: str) -> float:
            driver.event_record(start, stream)
            driver.call(launch, graph, stream)
            driver.call(launch, graph, stream)
            driver.event_record(end, stream)
            driver.stream_synchronize(stream)
            return driver.event_elapsed_ms(start, end)

        for launch in ("cuGraphLaunch", "cuGraphLaunch_ptsz"):
            near(partial(on_host, partial(run_twice, launch)), 20, 10)
            near(partial(run_twice, launch), 20, 1)
        driver.graph_exec_destroy(graph)
        assert driver.result("cuGraphLaunch", graph, stream) == "CUDA_ERROR_INVALID_VALUE"
        kernel = driver.kernel("spin_30s")
        with driver.capture(stream) as graphs:
            driver.launch(kernel, stream)
        driver.graph_launch(driver.graph_instantiate(graphs[0]), stream)
        assert not driver.stream_is_done(stream), "a launch does not wait"

    machine.python(program)


@pytest.mark.parametrize(
    "function",
    [
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuStreamSynchronize",
        "cuStreamQuery",
        "cuCtxSynchronize",
        "cuModuleLoadData",
        "cuMemcpyDtoH_v2",
    ],
)
def test_a_call_that_spoils_the_capture(machine: Machine, function: str) -> None:
    def program() -> None:
        kernel, stream, out = driver.kernel("spin_2ms"), driver.stream(STREAM_NON_BLOCKING), ctypes.c_uint64()
        event, address = driver.event(), driver.mem_alloc(4096)
        arguments = {
            "cuMemAlloc_v2": (byref(out), 8),
            "cuMemFree_v2": (address,),
            "cuEventQuery": (event,),
            "cuEventSynchronize": (event,),
            "cuStreamSynchronize": (stream,),
            "cuStreamQuery": (stream,),
            "cuCtxSynchronize": (),
            "cuModuleLoadData": (byref(out), b"image"),
            "cuMemcpyDtoH_v2": (byref(out), address, 8),
        }
        driver.begin_capture(stream)
        driver.launch(kernel, stream)
        print(driver.result(function, *arguments[function]), driver.is_capturing(stream))
        launched = driver.result("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
        print(launched, ending(stream, out), out.value)
        driver.launch(kernel, stream)
        driver.synchronize()

    assert machine.python(program).split() == [UNSUPPORTED, "2", INVALIDATED, INVALIDATED, "0"]


def test_the_modes(machine: Machine) -> None:
    def program() -> None:
        stream, out, event = driver.stream(STREAM_NON_BLOCKING), ctypes.c_uint64(), driver.event()

        def allocate():
            address = ctypes.c_uint64()
            return driver.result("cuMemAlloc_v2", byref(address), 8)

        def relaxed():
            assert driver.exchange_capture_mode(CAPTURE_RELAXED) == CAPTURE_GLOBAL
            return allocate()

        def thread_local():
            driver.exchange_capture_mode(CAPTURE_THREAD_LOCAL)
            return allocate()

        for mode in (CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED):
            row = []
            for where, function in (
                (in_thread, relaxed),
                (in_thread, thread_local),
                (in_thread, allocate),
                (lambda f: f(), allocate),
            ):
                driver.begin_capture(stream, mode)
                row.append("ok" if where(function) == "CUDA_SUCCESS" else "no")
                assert (ending(stream, out) == "CUDA_SUCCESS") == (row[-1] == "ok")
            print(*row)
        # this thread's own mode
        driver.exchange_capture_mode(CAPTURE_RELAXED)
        driver.begin_capture(stream, CAPTURE_GLOBAL)
        assert allocate() == "CUDA_SUCCESS" and driver.event_is_done(event)
        driver.stream_synchronize(driver.stream())
        assert ending(stream, out) == "CUDA_SUCCESS"

    assert machine.python(program).splitlines() == ["ok ok no no", "ok ok ok no", "ok ok ok ok"]


def test_another_thread_cannot_end_it(machine: Machine) -> None:
    def program() -> None:
        stream, out = driver.stream(STREAM_NON_BLOCKING), ctypes.c_uint64()

        driver.begin_capture(stream)
        print(in_thread(lambda: ending(stream, out)), ending(stream, out))
        driver.begin_capture(stream, CAPTURE_RELAXED)
        print(in_thread(lambda: ending(stream, out)))

    assert machine.python(program).split() == ["CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "CUDA_SUCCESS", "CUDA_SUCCESS"]


def test_a_capture_spreads_through_events(machine: Machine) -> None:
    def program() -> None:
        kernel, stream = driver.kernel("spin_2ms"), driver.stream(STREAM_NON_BLOCKING)
        out, event = ctypes.c_uint64(), driver.event()

        other, fork, join = driver.stream(STREAM_NON_BLOCKING), driver.event(), driver.event()

        def spread():
            driver.begin_capture(stream)
            driver.event_record(fork, stream)
            driver.stream_wait_event(other, fork)
            assert driver.is_capturing(other) == 1
            driver.launch(kernel, other)

        spread()
        driver.event_record(join, other)
        assert driver.result("cuEventQuery", join) == "CUDA_ERROR_CAPTURED_EVENT"
        assert ending(stream, out) == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        spread()
        driver.event_record(join, other)
        driver.stream_wait_event(stream, join)
        driver.graph_instantiate(driver.end_capture(stream))
        assert driver.is_capturing(other) == 0
        assert driver.result("cuEventElapsedTime", byref(out), join, join) == "CUDA_ERROR_CAPTURED_EVENT"
        spread()
        assert driver.result("cuStreamEndCapture", other, byref(out)) == "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
        assert ending(stream, out) == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
        spread()
        driver.event_record(join, other)
        driver.launch(kernel, other)
        driver.stream_wait_event(stream, join)
        assert ending(stream, out) == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "work came after the event"
        driver.begin_capture(stream)
        driver.begin_capture(other)
        driver.event_record(fork, stream)
        wait = ("cuStreamWaitEvent", other, fork, 0)
        assert driver.result(*wait) == "CUDA_ERROR_STREAM_CAPTURE_MERGE"
        assert ending(stream, out) == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        assert driver.result("cuStreamEndCapture", other, byref(out)) == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        driver.event_record(event)
        driver.begin_capture(stream)
        assert driver.result("cuStreamWaitEvent", stream, event, 0) == "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
        ending(stream, out)

    machine.python(program)


def test_the_legacy_stream_beside_a_capture(machine: Machine) -> None:
    def program() -> None:
        kernel, stream, out = driver.kernel("spin_2ms"), driver.stream(STREAM_NON_BLOCKING), ctypes.c_uint64()

        assert driver.result("cuStreamBeginCapture_v2", None, 0) == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        driver.begin_capture(stream)
        driver.launch(kernel)
        assert ending(stream, out) == "CUDA_SUCCESS", "a non-blocking stream has nothing to do with it"
        stream = driver.stream()
        driver.begin_capture(stream)
        assert driver.result("cuStreamBeginCapture_v2", stream, 0) == "CUDA_ERROR_ILLEGAL_STATE"
        assert driver.result("cuStreamIsCapturing", None, byref(out)) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        assert driver.is_capturing(stream) == 1
        launch = ("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
        assert driver.result(*launch) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        assert ending(stream, out) == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        assert ending(stream, out) == "CUDA_ERROR_ILLEGAL_STATE"
        driver.begin_capture(stream)
        driver.stream_destroy(stream)
        driver.launch(kernel)
        driver.mem_alloc(8)

    machine.python(program)


def test_a_graph_in_a_capture_and_an_external_event(machine: Machine) -> None:
    def program() -> None:
        kernel, stream, event = driver.kernel("spin_2ms"), driver.stream(STREAM_NON_BLOCKING), driver.event()

        start, end = driver.event(), driver.event()
        with driver.capture(stream) as graphs:
            driver.call("cuEventRecordWithFlags", ctypes.c_void_p(start), ctypes.c_void_p(stream), 1)
            driver.launch(kernel, stream)
            driver.call("cuEventRecordWithFlags", ctypes.c_void_p(end), ctypes.c_void_p(stream), 1)
        inner = driver.graph_instantiate(graphs[0])
        with driver.capture(stream) as graphs:
            driver.graph_launch(inner, stream)
            driver.graph_launch(inner, stream)
        outer, finish = driver.graph_instantiate(graphs[0]), driver.event()

        def run_once() -> float:
            driver.graph_launch(outer, stream)
            driver.event_synchronize(end)
            return driver.event_elapsed_ms(start, end)

        near(run_once, 2, 0.001)  # between the second records of each

        def run_five_times() -> float:
            driver.event_record(event, stream)
            for _ in range(5):
                driver.graph_launch(outer, stream)
            driver.event_record(finish, stream)
            driver.event_synchronize(finish)
            return driver.event_elapsed_ms(event, finish)

        near(run_five_times, 20, 1)  # two times two milliseconds, five times

    machine.python(program)
