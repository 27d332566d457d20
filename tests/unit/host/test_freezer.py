"""Cgroups of containers: found, frozen and ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cgroup_maker import ID, running

from support import wait_until
from vgpurun.guard.processes import is_ending
from vgpurun.host import freezer
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.util.process_identity import ProcessIdentity, identify

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
        wait_until(lambda: is_ending(pid))


class Replaced(ProcessIdentity):
    """A process that ends, and whose number another one has, once it is opened."""

    @contextmanager
    def opened(self, uid: int | None = None) -> Iterator[int | None]:
        assert uid is None
        with subprocess.Popen(["true"]) as ended:
            file = os.pidfd_open(ended.pid)
        yield file
        os.close(file)


def test_who_is_taken_in_is_that_very_process(make_cgroup: Callable[[str], Cgroup]) -> None:
    cgroup = make_cgroup(ID)
    with running(None) as pid:
        found = identify(pid)
        cgroup.take_in(found._replace(started_ticks=found.started_ticks - 1))
        assert cgroup.pids() == [], "it has ended, and another one has its number"
        cgroup.take_in(Replaced(*found))
        assert cgroup.pids() == [], "the same, as it was moved"
        cgroup.take_in(found)
        assert cgroup.pids() == [pid]


def test_a_container_below_which_there_are_more(make_cgroup: Callable[[str], Cgroup]) -> None:
    cgroup = make_cgroup(ID)
    inner = Cgroup(cgroup.folder / "inner", cgroup.is_unified)
    inner.folder.mkdir()
    with running(inner) as pid:
        found = freezer.find(pid, ID)
        assert found is not None and found.folder.name == cgroup.folder.name and cgroup.pids() == [pid]
        cgroup.kill()
        wait_until(lambda: is_ending(pid))
    wait_until(lambda: not inner.pids())
    inner.folder.rmdir()


def test_mounts_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup"
    (folder / "docker" / ID).mkdir(parents=True)
    (folder / "docker" / ID / "cgroup.freeze").touch()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_bytes(
        b"36 25 0:33 / /home/ann/\xff\x0b\xe2\x80\xa8\xc2\xa0x rw - fuse ann rw\n37 25 0:34 / /x rw - tmpfs  rw\n"
        b"26 25 0:26 / %s rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n" % bytes(folder)
    )
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/docker/{ID}/below\n")
    assert freezer.find(7, ID, tmp_path) == Cgroup(folder / "docker" / ID, True)


def test_each_start_of_a_container_is_another(make_cgroup: Callable[[str], Cgroup]) -> None:
    cgroup = make_cgroup(ID)
    first = run_of(cgroup)
    cgroup.folder.rmdir()
    assert run_of(cgroup) == ""
    cgroup.folder.mkdir()
    assert run_of(cgroup) not in ("", first)
