"""The examples run, and print what their texts promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from support import CHECKOUT, LIBRARY, assert_measured

EXAMPLES = CHECKOUT / "examples"


def share_of_demo(output: str) -> float:
    """The last figure of the demo, in percent."""
    return float(re.findall(r"([0-9.]+)% of the above", output)[0])


@pytest.mark.parametrize("with_engine", [True, False], ids=["in containers", "without an engine"])
def test_the_demo(vgpurun: Cli, tmp_path: Path, with_engine: bool) -> None:
    environment = vgpurun.environment | ({} if with_engine else {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    command = [sys.executable, EXAMPLES / "demo.py"]

    def share() -> float:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done
        assert ("in containers" in done.stdout) is with_engine
        assert "2048 MiB in CUDA, 2048 MiB in nvidia-smi" in done.stdout
        assert "then out of memory" in done.stdout
        assert "allocations work again" in done.stdout
        vgpurun.assert_nothing_left()
        return share_of_demo(done.stdout)

    assert_measured(share, lambda share: abs(share - 50) < 6)


def test_two_tenants(vgpurun: Cli, debian: str) -> None:
    bin_dir = str(Path(sys.executable).parent)
    environment = vgpurun.environment | {"VGPURUN_DRIVER": "sim", "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    command = [EXAMPLES / "two_tenants.sh", debian]

    def shares() -> list[int]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done
        vgpurun.assert_nothing_left()
        return [int(share) for share in re.findall(r"([0-9]+) % of what one does alone", done.stdout)]

    assert_measured(shares, lambda shares: abs(shares[0] - 30) <= 4 and abs(shares[1] - 70) <= 6)


@pytest.mark.parametrize(("service", "limit_bytes"), [("small", 2 << 30), ("large", 8 << 30)])
def test_the_compose_file(vgpurun: Cli, debian: str, service: str, limit_bytes: int) -> None:
    """With the variables and mounts that the file names, and the simulated driver for NVIDIA's toolkit."""
    described = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"][service]
    sources = [volume.split(":", 1) for volume in described["volumes"]]
    volumes = [f"{(EXAMPLES / source).resolve()}:{rest}" for source, rest in sources]
    Path("/tmp/vgpulock").mkdir(mode=0o1777, exist_ok=True)
    output = vgpurun.engine.containers.run(
        debian,
        [*GPU_PROGRAM, "info"],
        environment=described["environment"] | {"LD_LIBRARY_PATH": "/driver"},
        volumes=[*volumes, WITH_PROGRAMS[1], f"{LIBRARY.parent}/sim:/driver:ro"],
        network="none",
        remove=True,
    )
    assert f'"total": {limit_bytes},'.encode() in output
