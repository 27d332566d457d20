"""Mounts of other processes, which are told without a look into their file systems."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from support.programs import Program, text_of
from vgpurun.guard.processes import is_counted_elsewhere
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.mounted import mounts_of, path_of, place_of
from vgpurun.launch import plan
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.slices.members import members
from vgpurun.slices.store import Slice
from vgpurun.suspend.processes import belongs_to

MINE = Path("/proc/self")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slice:
    """A slice, in a folder with a name that the kernel's list has to escape."""
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "of a\\host\n"))
    quotas = (DeviceQuota(make_gpus(1)[0], Quota(GIB)),)
    return store.make("alice", quotas, plan.shared_files(quotas, DriverPlan("host")))


def mount(what: bytes, where: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    assert ctypes.CDLL(None, use_errno=True).mount(what, where, kind, flags, options) == 0


def stay_in(root: str) -> None:
    os.chroot(root)
    print(flush=True)
    time.sleep(600)


@contextmanager
def in_a_root(program: Program) -> Iterator[int]:
    """A process with mounts of its own that stays in another root, as one in a container; yields its PID."""
    if os.geteuid() != 0:
        pytest.skip("only root can make such a process")
    command = ["unshare", "--mount", sys.executable, "-c", text_of(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("name", [".vgpurun", "renamed"])
def test_a_file_is_known_wherever_it_is_mounted(made: Slice, tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    target = root / name / "run" / "usage"
    target.parent.mkdir(parents=True)
    target.touch()
    usage, at, its_root = bytes(made.usage), bytes(target), str(root)

    def program() -> None:
        mount(usage, at, None, 4096, None)  # MS_BIND
        stay_in(its_root)

    with in_a_root(program) as pid:
        assert [each.pid for each in members([made])[made.id]] == [pid]
        assert belongs_to(pid, made.folder)
        (place,) = (each.place for each in mounts_of(Path(f"/proc/{pid}")) if each.point == f"/{name}/run/usage")
        assert place == place_of(made.usage) and path_of(place) == made.usage
    assert members([made])[made.id] == []


def test_a_link_to_the_file_is_no_mount_of_it(made: Slice, tmp_path: Path) -> None:
    """Root in a container can put one there: the host would follow it in the host's own files."""
    root = tmp_path / "root"
    root.mkdir()
    (root / ".vgpurun").symlink_to(made.folder)
    its_root = str(root)

    def program() -> None:
        stay_in(its_root)

    with in_a_root(program) as pid:
        assert Path(f"/proc/{pid}/root/.vgpurun/run/usage").samefile(made.usage)
        assert members([made])[made.id] == [] and not belongs_to(pid, made.folder)
        assert not is_counted_elsewhere(pid)


def look() -> None:
    pid, found = int(sys.argv[1]), store.find("alice")
    print(members([found])[found.id], belongs_to(pid, found.folder), is_counted_elsewhere(pid))


def test_a_file_system_that_never_answers_holds_nobody_up(made: Slice, tmp_path: Path) -> None:
    """Root in a container that may mount can have one where the host used to look."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no FUSE, or only root may use it")
    root = tmp_path / "root"
    place = root / ".vgpurun"
    place.mkdir(parents=True)
    at, its_root = bytes(place), str(root)

    def never_answer() -> None:
        file = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={file},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        mount(b"never", at, b"fuse", 0, options)
        stay_in(its_root)

    with in_a_root(never_answer) as pid:
        command = [sys.executable, "-c", text_of(look), str(pid)]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert seen.stdout == "[] False False\n", seen
        stat = ["stat", f"/proc/{pid}/root/.vgpurun/run/usage"]
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(stat, capture_output=True, timeout=1)


def test_files_of_this_process(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    place = place_of(file)
    assert place is not None and path_of(place) == file
    assert place_of(tmp_path / "missing") is None
    assert path_of(place._replace(device="0:0")) is None
    assert any(each.point == "/" for each in mounts_of(MINE))
