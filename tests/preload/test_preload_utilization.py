"""The usage file's figures of compute: shares of the last seconds, waits, and what is not enforced."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import UUID, Sandbox

from cuda_driver import Driver
from support import assert_measured
from vgpurun.limits import usage_file
from vgpurun.limits.usage_file import DeviceReading

pytestmark = pytest.mark.real_time


def launch(seconds: float) -> None:
    d = Driver.started()
    k, end = d.kernel("spin_1ms"), time.monotonic() + seconds
    while time.monotonic() < end:
        d.launch(k)
    d.synchronize()


def read(usage: Path, gpu: str = UUID) -> DeviceReading:
    readings = usage_file.read_usage(usage, [gpu])
    return readings[0]


def while_it_works(sandbox: Sandbox) -> DeviceReading:
    """Return the figures of a program at 40 % that has worked for 3 s and works on."""

    def program() -> None:
        print("begins")
        launch(60)

    with sandbox.start_python(program, CUDA_DEVICE_SM_LIMIT="40") as process:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        time.sleep(3.2)
        seen = read(sandbox.folder / "usage", sandbox.uuid)
        process.kill()
    return seen


@pytest.mark.real_time(measure=while_it_works)
def test_the_share_of_the_last_seconds(measured: Callable[[], DeviceReading]) -> None:
    def holds(seen: DeviceReading) -> bool:
        """The container is 3 s old, of which it took some to begin."""
        return (
            33 < seen.utilization.last_1s < 47
            and 25 < seen.utilization.last_10s < 47
            and seen.utilization.last_60s == pytest.approx(seen.utilization.last_10s)
            and seen.launches > 500
            and seen.throttled_ns > 1e9
            and seen.not_enforced == ()
        )

    assert_measured(measured, holds)
