"""What the usage file says of compute: shares of the last seconds, waits, and what is not enforced."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from sandbox import MACHINE, UUID, Sandbox

from vgpurun import abi, region, state
from vgpurun.region import DeviceReading

LAUNCH = """
import time
from cuda_driver import *
d = Driver(); d.start(); k = d.kernel('spin_1ms')
end = time.monotonic() + {seconds}
while time.monotonic() < end: d.launch(k)
d.synchronize()
"""


def read(usage: Path) -> DeviceReading:
    readings = region.read_usage(usage, [UUID])
    assert readings is not None
    return readings[0]


def test_the_share_of_the_last_seconds(sandbox: Sandbox) -> None:
    usage = sandbox.folder / "usage-shares"
    limits = {"CUDA_DEVICE_SM_LIMIT": "40", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(usage)}
    sandbox.python(LAUNCH.format(seconds=3.2), **limits)
    seen = read(usage)
    assert 30 < seen.utilization.last_1s < 50
    assert seen.utilization.last_10s == pytest.approx(seen.busy_ns / 10e9 * 100, rel=0.4)
    assert seen.utilization.last_60s == pytest.approx(seen.busy_ns / 60e9 * 100, rel=0.4)
    assert seen.launches > 500
    assert seen.gate_wait_ns > 1e9
    assert seen.not_enforced == ()


def test_turns_that_cannot_be_taken_are_told(sandbox: Sandbox) -> None:
    """A folder is in the place of the file. The GPU is one of this test alone, since all programs share that place."""
    uuid = f"GPU-{os.getpid():08x}-0000-0000-0000-00000000dead"
    (sandbox.folder / "machine.yaml").write_text(MACHINE.replace(UUID, uuid))
    state.make_lock_dir()
    in_the_way = Path(abi.LOCK_DIR) / f"{uuid}.turns"
    in_the_way.mkdir()
    usage = sandbox.folder / "usage-turns"
    try:
        result = sandbox.run(
            [sys.executable, "-c", LAUNCH.format(seconds=0.2)],
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
