"""Charges of the scheduler's limiter for a program that does not keep the GPU busy (tests/c/samples_test.c: gaps)."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

import pytest
from governed import configure
from sandbox import Sandbox
from together import each_alone

from cuda_driver import Driver
from support import assert_measured
from support.programs import text_of

POINTS = 2.0


def working_by_fits() -> None:
    """Owe something when there is nothing left to do: what follows is charged as well."""
    d = Driver.started()
    long, short = d.kernel("spin_20ms"), d.kernel("spin_5ms")
    done_s, began = 0.0, time.monotonic()
    while (passed_s := time.monotonic() - began) < 5:
        d.launch(long)
        d.synchronize()
        time.sleep(0.02)  # off by now
        for _ in range(4):
            d.launch(short)
        d.synchronize()
        done_s += 0.04
    print(100 * done_s / passed_s, flush=True)
    os._exit(0)


def by_fits(sandbox: Sandbox) -> float:
    text = (sys.executable, "-c", text_of(working_by_fits))
    return each_alone(sandbox, {"": text}, CUDA_DEVICE_SM_LIMIT="20")[""]


@pytest.mark.real_time(measure=by_fits)
def test_what_follows_after_it_was_off_with_nothing_to_do_is_charged(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda share: abs(share - 20) < POINTS)


def nearly_all() -> None:
    """Be taken off for a moment at the end of each period, and print the longest time without any progress."""
    d = Driver.started()
    k, longest_s = d.kernel("spin_1ms"), 0.0
    events: list[object] = []
    end_s = last_s = time.monotonic() + 1
    while last_s < end_s + 3:
        d.launch(k)
        events.append(d.event())
        d.event_record(events[-1])
        if len(events) > 4:
            d.event_synchronize(events.pop(0))
            now_s = time.monotonic()
            if now_s > end_s:
                longest_s, last_s = max(longest_s, now_s - last_s), now_s
    print(1000 * longest_s, flush=True)
    os._exit(0)


def longest_ms(sandbox: Sandbox) -> float:
    text = (sys.executable, "-c", text_of(nearly_all))
    return each_alone(sandbox, {"": text}, CUDA_DEVICE_SM_LIMIT="96")[""]


@pytest.mark.real_time(measure=longest_ms)
def test_who_goes_off_as_a_period_ends_goes_on_at_once(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda stall_ms: stall_ms < 30)


def on_many_streams() -> None:
    """Launch on more streams than are told apart, and go on with the last."""
    d = Driver.started()
    nothing, k = d.kernel("nothing_0us"), d.kernel("spin_1ms")
    streams = [d.stream() for _ in range(16500)]
    for stream in streams:
        d.launch(nothing, stream)
    d.synchronize()
    done, began = 0, time.monotonic()
    while (passed_s := time.monotonic() - began) < 4:
        for _ in range(4):
            d.launch(k, streams[-1])
        d.stream_synchronize(streams[-1])
        done += 4
    print(100 * done * 1e-3 / passed_s, flush=True)
    os._exit(0)


def share_on_many_streams(sandbox: Sandbox) -> float:
    return each_alone(sandbox, {"": (sys.executable, "-c", text_of(on_many_streams))}, CUDA_DEVICE_SM_LIMIT="20")[""]


@pytest.mark.real_time(measure=share_on_many_streams)
def test_streams_that_are_not_told_apart_are_charged(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda share: abs(share - 20) < POINTS)


def leaving_within_a_call() -> None:
    d = Driver.started()
    k = d.kernel("spin_100ms")
    for _ in range(20):
        d.launch(k)
    time.sleep(0.2)  # its governor waits for the driver by now
    print(time.monotonic(), flush=True)
    ctypes.CDLL(None).exit(0)


def exit_s(sandbox: Sandbox) -> float:
    configure(sandbox, "channels_off_us: 1000000")
    began_s = float(sandbox.python(leaving_within_a_call, CUDA_DEVICE_SM_LIMIT="20"))
    return time.monotonic() - began_s


@pytest.mark.real_time(measure=exit_s)
def test_an_exit_waits_for_no_call_of_the_driver(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda took_s: took_s < 0.4)
