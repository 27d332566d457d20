"""The examples run, and print what their texts promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli import Cli
from support import CHECKOUT, assert_measured

EXAMPLES = CHECKOUT / "examples"


def share_of_demo(output: str) -> float:
    """The last figure of the demo, in percent."""
    return float(re.findall(r"([0-9.]+)% of the above", output)[0])


@pytest.mark.real_time
@pytest.mark.parametrize(
    "with_engine",
    [pytest.param(True, id="in containers", marks=pytest.mark.exhaustive), pytest.param(False, id="without an engine")],
)
def test_the_demo(own_gpu: Cli, tmp_path: Path, with_engine: bool) -> None:
    environment = own_gpu.environment | ({} if with_engine else {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    command = [sys.executable, EXAMPLES / "demo.py"]

    def share() -> float:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done
        assert ("in containers" in done.stdout) is with_engine
        assert "2048 MiB in CUDA, 2048 MiB in nvidia-smi" in done.stdout
        assert "then out of memory" in done.stdout
        assert "allocations work again" in done.stdout
        own_gpu.assert_nothing_left()
        return share_of_demo(done.stdout)

    assert_measured(share, lambda share: abs(share - 50) < 6)


@pytest.mark.exhaustive
@pytest.mark.real_time
def test_two_tenants(own_gpu: Cli, debian: str) -> None:
    bin_dir = str(Path(sys.executable).parent)
    environment = own_gpu.environment | {"VGPURUN_DRIVER": "sim", "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    command = [EXAMPLES / "two_tenants.sh", debian]

    def shares() -> list[int]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done
        own_gpu.assert_nothing_left()
        return [int(share) for share in re.findall(r"([0-9]+) % of what one does alone", done.stdout)]

    assert_measured(shares, lambda shares: abs(shares[0] - 30) <= 4 and abs(shares[1] - 70) <= 6)
