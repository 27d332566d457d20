"""Containers and slices of the first version with these files: recorded/first-version.tar.xz was made by its library.

A container with 4 GiB and 30 % ran a program that held 256 MiB and launched kernels; the slice had 1 GiB and 20 %.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from ctypes import sizeof
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import GIB, MIB, make_gpus

from support.programs import text_of
from vgpurun import abi
from vgpurun.engine.client import VgpurunContainer
from vgpurun.engine.labels import LABEL_STATE, read_record
from vgpurun.inventory.usage import read_containers
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.model import Limits
from vgpurun.limits.update import set_paused, update
from vgpurun.slices import store

RECORDED = Path(__file__).parent / "recorded" / "first-version.tar.xz"
ID = "8cab0d15d6a08e45c84c2a215da04c67db0ebced08367b5b3dd7012e0951ef63"
UUID = "GPU-51a00000-0000-4000-8000-000000000000"
GPU = replace(make_gpus(1)[0], uuid=UUID)


def hold_slot() -> None:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX, 1, abi.SLOT_LOCK_OFFSET)
    print("held", flush=True)
    time.sleep(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(RECORDED) as tar:
        tar.extractall(tmp_path)
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    return tmp_path / "containers" / "old"


@pytest.fixture
def container(folder: Path) -> Iterator[VgpurunContainer]:
    """The container, whose program lives: another process has the lock of its slot."""
    mounts = [{"Source": f"{folder}/etc", "Destination": f"{abi.CONTAINER_DIR}/etc"}]
    record = read_record(ID, {LABEL_STATE: str(folder)}, mounts)
    assert record is not None
    command = [sys.executable, "-c", text_of(hold_slot), folder / "run" / "usage"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield VgpurunContainer(ID, "old", "image", "running", record)
        process.kill()


def test_what_it_may_have_and_what_it_uses_is_known(container: VgpurunContainer) -> None:
    (tenant,) = read_containers([container], [GPU])
    (device,) = tenant.devices
    assert tenant.user == "root"
    assert (device.quota.memory_bytes, device.quota.sm_percent) == (4 * GIB, 30)
    assert device.memory_used_bytes == (256 + 518) * MIB
    reading = device.reading
    assert reading is not None and (reading.processes, reading.launches) == (1, 1259)
    assert reading.throttled_ns > 10**9


def test_its_limits_can_be_changed_in_the_file_that_its_library_has_open(container: VgpurunContainer) -> None:
    path = container.limits_folder / "etc" / "limits"
    inode, size_bytes = path.stat().st_ino, path.stat().st_size
    (change,) = update(container, [GPU], Limits.read("3g", "20"), lambda *_: nullcontext())
    assert (change.before.sm_percent, change.after.memory_bytes) == (30, 3 * GIB)
    set_paused(container, True)
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size_bytes)
    ((_, quota),) = limits_file.read_limits(path) or ()
    assert (quota.memory_bytes, quota.sm_percent, quota.paused) == (3 * GIB, 20, True)


def test_its_slice_is_one_still(folder: Path) -> None:
    slice_ = store.find("team")
    ((_, quota),) = slice_.quotas
    assert (quota.memory_bytes, quota.sm_percent, slice_.user) == (GIB, 20, "root")
    assert usage_file.read_sound_usage(slice_.usage, [UUID])[0].memory_used_bytes == 0


def test_the_files_have_not_grown(folder: Path) -> None:
    assert sizeof(abi.Usage) == (folder / "run" / "usage").stat().st_size
    assert sizeof(abi.Limits) == (folder / "etc" / "limits").stat().st_size
