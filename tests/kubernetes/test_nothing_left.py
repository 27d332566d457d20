"""Claims and containers come and go by the thousand, and nothing is left of them."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from claim_maker import claim, result
from claim_node import GPUS, ClaimNode, OneClaim, named
from vgpurun import abi
from vgpurun.host.drivers import DriverPlan
from vgpurun.kubernetes.agent.sweep import Sweeper
from vgpurun.kubernetes.device_plugin.node import Node
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources
from vgpurun.kubernetes.device_plugin.units import resources_of
from vgpurun.kubernetes.gpu_health import Health
from vgpurun.kubernetes.state import state_root

COUNTS = [100, pytest.param(10_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)])]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: a disk takes milliseconds for each."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def lock_dir(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(abi, "LOCK_DIR", str(folder / "tenants"))
    return folder / "tenants"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("count", COUNTS)
def test_of_claims(folder: Path, lock_dir: Path, count: int) -> None:
    node = ClaimNode(folder / "node", OneClaim(claim()))
    driver = node.driver()
    for _ in range(count):
        node.cluster.made = made = claim(result(GPUS[0]))
        driver.prepare(named(made))
        assert len(list(lock_dir.iterdir())) == 1
        opened = open_files()
        driver.unprepare(named(made))
        assert open_files() <= opened
    assert node.left() == set()
    assert list(lock_dir.iterdir()) == []


@pytest.mark.parametrize("count", COUNTS)
def test_of_units(folder: Path, lock_dir: Path, count: int) -> None:
    resources = resources_of(OfferedResources(), GPUS)
    node = Node(GPUS, resources, Health(), folder, folder / "record", folder / "lib.so", lambda _: DriverPlan(""))
    numbers = random.Random(1)
    opened = open_files()
    for _ in range(count):
        gpu, first = numbers.choice(GPUS), numbers.randrange(6)
        node.allocate(resources[0], [f"{gpu.uuid}_{first + i}" for i in range(numbers.randrange(1, 3))])
        assert len(list(lock_dir.iterdir())) == len(list(state_root(folder).glob("units-*"))) <= 8 * len(GPUS)
    sweeper = Sweeper(folder, 1)
    assert sweeper.look([], [])
    assert {each.name for each in state_root(folder).iterdir()} == {".lock"}
    assert list(lock_dir.iterdir()) == []
    assert open_files() == opened
