"""Mounts of other processes, which are told without a look into their file systems."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

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


@contextmanager
def in_a_root(root: Path, code: str) -> Iterator[int]:
    """A process with mounts of its own and another root, as one in a container; yields its PID."""
    if os.geteuid() != 0:
        pytest.skip("only root can make such a process")
    program = f"import ctypes, os, sys, time\nmount = ctypes.CDLL(None, use_errno=True).mount\n{code}\n"
    program += f"os.chroot({str(root)!r}); print(flush=True); time.sleep(600)"
    command = ["unshare", "--mount", sys.executable, "-c", program]
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
    bind = f"assert mount({bytes(made.usage)!r}, {bytes(target)!r}, None, 4096, None) == 0"
    with in_a_root(root, bind) as pid:
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
    with in_a_root(root, "") as pid:
        assert Path(f"/proc/{pid}/root/.vgpurun/run/usage").samefile(made.usage)
        assert members([made])[made.id] == [] and not belongs_to(pid, made.folder)
        assert not is_counted_elsewhere(pid)


NEVER_ANSWERS = """
file = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={{file}},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
assert mount(b'never', {place!r}, b'fuse', 0, options) == 0
"""
LOOK = """
import sys
from vgpurun.guard.processes import is_counted_elsewhere
from vgpurun.slices import store
from vgpurun.slices.members import members
from vgpurun.suspend.processes import belongs_to
pid, found = int(sys.argv[1]), store.find('alice')
print(members([found])[found.id], belongs_to(pid, found.folder), is_counted_elsewhere(pid))
"""


def test_a_file_system_that_never_answers_holds_nobody_up(made: Slice, tmp_path: Path) -> None:
    """Root in a container that may mount can have one where the host used to look."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no FUSE, or only root may use it")
    root = tmp_path / "root"
    place = root / ".vgpurun"
    place.mkdir(parents=True)
    with in_a_root(root, NEVER_ANSWERS.format(place=bytes(place))) as pid:
        seen = subprocess.run([sys.executable, "-c", LOOK, str(pid)], capture_output=True, text=True, timeout=60)
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
