"""The driver's own memory limits (r615 or newer) on a real GPU and real containers, with the library out of the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from runners import MAY_UNMOUNT, Container, vgpurun

from support import unavailable
from vgpurun.host import gpus, memory_limits

MIB = 1 << 20


@pytest.fixture
def container(python: str, request: pytest.FixtureRequest) -> Container:
    if missing := memory_limits.lacking(gpus.list_gpus()[:1]):
        unavailable(missing)
    if os.geteuid() != 0:
        unavailable("only root may have the driver's own limits set")
    return Container(python, request.getfixturevalue("host_image"))


@pytest.mark.parametrize("before", ["", "umount /etc/ld.so.preload && "], ids=["library", "unmounted"])
def test_the_driver_holds_a_container(container: Container, before: str) -> None:
    """Fill in steps of 1 MiB by the driver's own functions; what NVML says is used stays within the limit."""
    fill = " ".join(container.program("driver_fill.py"))
    options = ("--gpus", "device=0", "--mem", "2g", "--enforce", "driver", *MAY_UNMOUNT)
    done = container.run(options, ["sh", "-c", f"{before}{fill}"])
    assert done.returncode == 0, done.stderr
    filled = json.loads(done.stdout.splitlines()[-1])
    assert filled["result"] == 2
    assert filled["total_bytes"] == 2048 * MIB
    assert 0 <= filled["free_bytes"] <= 2 * MIB


def test_update_and_the_end(container: Container) -> None:
    name = f"held-{os.getpid()}"
    sleep = ("-d", "--name", name, "--gpus", "device=0", "--mem", "4g", "--enforce", "driver")
    try:
        assert container.run(sleep, ["sleep", "100"]).returncode == 0
        for size, size_bytes in (("6g", 6144 * MIB), ("3g", 3072 * MIB)):
            assert vgpurun(["update", "--mem", size, name]).returncode == 0
            (described,) = json.loads(vgpurun(["inspect", name]).stdout)
            assert described["devices"][0]["memory_limit_driver_bytes"] == size_bytes
        cgroup = memory_limits.cgroup_of(described["docker"]["State"]["Pid"])
        assert cgroup is not None
    finally:
        vgpurun(["rm", "-f", name])
    assert not Path(cgroup).exists()
