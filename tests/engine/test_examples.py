"""The examples run, and print what their texts promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli import Cli, clean_environment
from support import CHECKOUT, assert_measured, own_gpu_config

EXAMPLES = CHECKOUT / "examples"


def share_of_demo(output: str) -> float:
    """The last figure of the demo, in percent."""
    return float(re.findall(r"([0-9.]+)% of the above", output)[0])


def assert_demo(environment: dict[str, str], where: str) -> None:
    """The demo runs there, shows a GPU of 2 GiB, and has half of its time."""

    def share() -> float:
        command = [sys.executable, EXAMPLES / "demo.py"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done
        assert where in done.stdout
        shown = re.findall(r"^\$ vgpurun .* python3 (\S+ (?:work|all) 2)$", done.stdout, re.MULTILINE)
        assert [Path(each.split()[0]).name for each in shown] == ["demo_program.py"] * 2, "as they can be typed"
        assert "2048 MiB in CUDA, 2048 MiB in nvidia-smi" in done.stdout
        assert "then out of memory" in done.stdout
        assert "allocations work again" in done.stdout
        return share_of_demo(done.stdout)

    assert_measured(share, lambda share: abs(share - 50) < 6)


@pytest.mark.exhaustive
@pytest.mark.real_time
def test_the_demo_in_containers(own_gpu: Cli) -> None:
    assert_demo(own_gpu.environment, "in containers")
    own_gpu.assert_nothing_left()


@pytest.mark.real_time
def test_the_demo_without_an_engine(built_library: Path, tmp_path: Path) -> None:
    environment = clean_environment(f"unix://{tmp_path}/no.sock", tmp_path / "state", tmp_path)
    assert_demo(environment | {"VGPUSIM_CONFIG": own_gpu_config(tmp_path)}, "with `vgpurun local`")
    assert list((tmp_path / "state" / "containers").iterdir()) == []


def test_the_program_of_the_demo_says_what_it_takes() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "demo_program.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "usage: demo_program.py work|all SECONDS\n")


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
