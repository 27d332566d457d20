"""Cgroups of containers: found, frozen and ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cgroup_maker import ID, running, until

from vgpurun.guard.processes import is_ending
from vgpurun.host import freezer
from vgpurun.host.freezer import Cgroup, run_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")


def test_frozen_thawed_and_ended(make_cgroup: Callable[[str], Cgroup]) -> None:
    cgroup = make_cgroup(ID)
    with running(cgroup) as pid:
        assert cgroup.pids() == [pid] and not cgroup.is_frozen()
        cgroup.freeze()
        cgroup.freeze()
        assert cgroup.is_frozen()
        cgroup.thaw()
        cgroup.thaw()
        assert not cgroup.is_frozen()
        cgroup.freeze()
        cgroup.kill()
        until(lambda: is_ending(pid))


def test_a_container_below_which_there_are_more(make_cgroup: Callable[[str], Cgroup]) -> None:
    cgroup = make_cgroup(ID)
    inner = Cgroup(cgroup.folder / "inner", cgroup.is_unified)
    inner.folder.mkdir()
    with running(inner) as pid:
        found = freezer.find(pid, ID)
        assert found is not None and found.folder.name == cgroup.folder.name and cgroup.pids() == [pid]
        cgroup.kill()
        until(lambda: is_ending(pid))
    until(lambda: not inner.pids())
    inner.folder.rmdir()


def test_mounts_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_bytes(
        b"36 25 0:33 / /home/ann/\xff\x0b\xe2\x80\xa8\xc2\xa0x rw - fuse ann rw\n37 25 0:34 / /x rw - tmpfs  rw\n"
        b"26 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert freezer._mounts(tmp_path) == {"": (Path("/sys/fs/cgroup"), "/")}


def test_each_start_of_a_container_is_another(make_cgroup: Callable[[str], Cgroup]) -> None:
    cgroup = make_cgroup(ID)
    first = run_of(cgroup)
    cgroup.folder.rmdir()
    assert run_of(cgroup) == ""
    cgroup.folder.mkdir()
    assert run_of(cgroup) not in ("", first)
