"""Two containers, or two processes, in one slice of a real GPU; and a real driver by a CDI device."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from runners import Container, Runner, answer, vgpurun

from support import unavailable, wait_until
from vgpurun.limits import usage_file

MIB, GIB = 1 << 20, 1 << 30
LIMIT_BYTES = 4 * GIB


@pytest.fixture
def slice_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if os.geteuid() != 0:
        unavailable("slices are made by root")
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    name = f"test{os.getpid()}"
    assert vgpurun(["slice", "create", name, "--mem", "4g", "--sm", "50", "--gpus", "device=0"]).returncode == 0
    yield name
    assert vgpurun(["slice", "rm", "--force", name]).returncode == 0


def wait_for(folder: Path, step: str, count: int) -> None:
    wait_until(lambda: len(list(folder.glob(f"{step}.*"))) >= count, f"{step} of {count}", 90)


def begin_together(folder: Path) -> None:
    """The step is there only once it says when they measure: after each of them has begun to compute."""
    (folder / "spin.new").write_text(str(time.monotonic() + 2))
    (folder / "spin.new").rename(folder / "spin")


def test_two_share_the_memory_and_the_time(runner: Runner, slice_name: str, tmp_path: Path) -> None:
    alone = answer(runner.run(["--mem", "4g", "--gpus", "device=0"], runner.program("slice_member.py")))["rate"]
    folder = tmp_path / "steps"
    folder.mkdir()
    in_container = isinstance(runner, Container)
    options = ["--slice", slice_name, *([f"-v{folder}:/steps"] if in_container else [])]
    command = [*runner.program("slice_member.py"), "/steps" if in_container else str(folder)]
    (uuid,) = (device["uuid"] for device in described(slice_name)["devices"])
    usage = tmp_path / "state" / "slices" / slice_name / "run" / "usage"
    with ThreadPoolExecutor() as pool:
        members = [pool.submit(runner.run, options, command) for _ in range(2)]
        try:
            wait_for(folder, "ready", 2)
            (folder / "fill").touch()
            wait_for(folder, "filled", 2)
            (reading,) = usage_file.read_usage(usage, [uuid]) or ()
            assert LIMIT_BYTES - 128 * MIB < reading.memory_used_bytes <= LIMIT_BYTES
            assert len(described(slice_name)["members"]) == 2
        finally:
            (folder / "free").touch()
            begin_together(folder)
        found = [answer(member.result()) for member in members]
    assert all(each["granted_bytes"] > 0 for each in found)
    assert sum(each["granted_bytes"] for each in found) <= reading.allocated_bytes
    rates = [each["rate"] / alone for each in found]
    print(f"shares of the {alone:.0f} a second that one does alone: {rates[0]:.3f} and {rates[1]:.3f}")
    assert 0.47 < sum(rates) < 0.53, (rates, alone)


def described(name: str) -> dict:
    (found,) = json.loads(vgpurun(["slice", "inspect", name]).stdout)
    return found


def test_a_cdi_device_brings_this_hosts_driver_and_the_limits(
    slice_name: str, engine: docker.DockerClient, cdi_folder: Path, glibc_image: str
) -> None:
    """Into an image with nothing but a C library."""
    path = cdi_folder / f"vgpurun-{slice_name}.yaml"
    try:
        assert vgpurun(["cdi", "generate", "-o", str(path), slice_name]).returncode == 0
        seen = engine.containers.run(
            glibc_image,
            ["/usr/bin/nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            device_requests=[docker.types.DeviceRequest(driver="cdi", device_ids=[f"vgpurun.io/gpu={slice_name}"])],
            network_mode="none",
            remove=True,
        )
        assert seen.split() == [b"4096"]
    finally:
        path.unlink(missing_ok=True)
