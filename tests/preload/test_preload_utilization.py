"""The usage file's figures of compute: shares of the last seconds, waits, and what is not enforced."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import MACHINE, UUID, Sandbox, tenant_of

from cuda_driver import Driver
from support import assert_measured
from support.programs import text_of
from vgpurun import abi
from vgpurun.limits import usage_file
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.storage import state

pytestmark = pytest.mark.real_time


def launch(seconds: float) -> None:
    d = Driver()
    d.start()
    k, end = d.kernel("spin_1ms"), time.monotonic() + seconds
    while time.monotonic() < end:
        d.launch(k)
    d.synchronize()


def read(usage: Path, gpu: str = UUID) -> DeviceReading:
    readings = usage_file.read_usage(usage, [gpu])
    assert readings is not None
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


def test_turns_that_cannot_be_taken_are_told(sandbox: Sandbox) -> None:
    """A folder is in the place of the file."""

    def program() -> None:
        launch(0.2)

    uuid = f"GPU-{os.getpid():08x}-0000-0000-0000-00000000dead"
    (sandbox.folder / "machine.yaml").write_text(MACHINE.replace(UUID, uuid))
    state.make_lock_dir()
    usage = sandbox.folder / "usage-turns"
    usage.touch()
    in_the_way = tenant_of(usage) / abi.TURNS_NAME
    in_the_way.mkdir(parents=True)
    try:
        result = sandbox.run(
            [sys.executable, "-c", text_of(program)],
            VGPUSIM_CONFIG=str(sandbox.folder / "machine.yaml"),
            VGPUSIM_STATE=str(sandbox.folder / "own-state"),
            CUDA_DEVICE_SM_LIMIT="50",
            CUDA_DEVICE_MEMORY_SHARED_CACHE=str(usage),
        )
    finally:
        in_the_way.rmdir()
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("do not take turns") == 1, result.stderr
    assert str(in_the_way) in result.stderr
    assert read(usage).not_enforced == ("turns",)
