"""Which launch of `vgpurun local` a process is of: nobody can have another user's processes held."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from support.programs import text_of
from vgpurun.errors import CgroupError
from vgpurun.guard import launches
from vgpurun.guard.listing import Listing
from vgpurun.guard.membership import Membership
from vgpurun.guard.programs import Programs
from vgpurun.guard.snapshot import Contained, Program
from vgpurun.host import freezer
from vgpurun.host.freezer import Cgroup
from vgpurun.inventory.reservations import limits_now
from vgpurun.limits.limits_file import limits_bytes
from vgpurun.limits.quota import Quota
from vgpurun.util.process_identity import ProcessIdentity, identify, read_stat

Quotas: TypeAlias = Sequence[tuple[str, Quota]]


class Gathering(Cgroup):
    """A cgroup that notes what is moved into it."""

    def take_in(self, process: ProcessIdentity) -> None:
        with (self.folder / "cgroup.procs").open("a") as file:
            file.write(f"{process.pid}\n")


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of a launch by this process."""
    (tmp_path / "cgroup").mkdir()
    made = Gathering(tmp_path / "cgroup", True)
    monkeypatch.setattr(launches.freezer, "made_below", lambda *_: made)
    monkeypatch.setattr(launches.freezer, "remove_empty", lambda *_: None)  # other tests' would be among them
    folder = tmp_path / "local-1"
    folder.mkdir()
    write_owner(folder, os.getpid())
    with (folder / "lock").open("w"):
        yield folder


def write_owner(folder: Path, pid: int, share: Path | None = None) -> None:
    owner = {"engine": None, "pid": pid, "user": "ann", "quota": "{}", "slice": share and str(share)}
    (folder / "owner").write_text(json.dumps(owner))


def program_of(pid: int, older_ticks: int = 0) -> Program:
    return Program(pid, read_stat(pid).started_ticks - older_ticks, "")


def held(*found: Program) -> list[Contained]:
    """Return the launches that are held for these programs, once all that is asked has been answered."""
    programs = Programs(Membership(Listing(print)))
    troubles = {"": "not looked yet"}
    looking = launches.Launches(time.monotonic, troubles.__setitem__)
    contained: dict[str, Contained] = {}
    while any(troubles.values()):
        troubles.clear()
        programs.by_pid = {each.pid: each for each in found}
        contained = looking.read(programs)
    return list(contained.values())


def test_by_its_lock(launch: Path) -> None:
    assert [each.folder for each in held(program_of(os.getpid()))] == [launch]
    assert held(program_of(os.getppid())) == []
    with subprocess.Popen(["sleep", "60"]) as child:  # which has none of our files
        assert [each.folder for each in held(program_of(child.pid))] == [launch]
        child.kill()


def test_its_limits_are_read_when_they_have_changed(launch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a slice that it has joined: that is the folder with its limits."""
    reads: list[Path] = []

    def read(folder: Path, at_launch: Quotas = ()) -> Quotas:
        reads.append(folder)
        return limits_now(folder, at_launch)

    monkeypatch.setattr(launches, "limits_now", read)
    now_s = 100.0
    share = launch.parent / "slice"
    (share / "etc").mkdir(parents=True)
    (share / "etc" / "limits").write_bytes(limits_bytes([("GPU-0", Quota(1 << 30))]))
    write_owner(launch, os.getpid(), share)
    programs = Programs(Membership(Listing(print)))
    looking = launches.Launches(lambda: now_s, lambda *_: None)

    def limit_bytes() -> int | None:
        programs.by_pid = {os.getpid(): program_of(os.getpid())}
        (found,) = looking.read(programs).values()
        return found.quotas["GPU-0"].memory_bytes

    while (share not in reads) or limit_bytes() is None:
        limit_bytes()
    now_s += 5
    assert limit_bytes() == 1 << 30
    reads.clear()
    for _ in range(3):
        now_s += 5
        assert limit_bytes() == 1 << 30
    assert not reads
    with (share / "etc" / "limits").open("r+b") as file:
        file.write(limits_bytes([("GPU-0", Quota(2 << 30))]))
    assert limit_bytes() == 2 << 30 and reads == [share]
    looking.close()


@pytest.mark.usefixtures("launch")
def test_other_files_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on a server that does not answer would hold up the guard."""
    looked_at, look = [], Path.stat

    def note(path: Path, **how: bool) -> os.stat_result:
        if path.parent.name == "fd":
            looked_at.append(path.readlink().name)
        return look(path, **how)

    monkeypatch.setattr(launches.Path, "stat", note)
    held(program_of(os.getpid()))
    assert set(looked_at) == {"lock"}


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_another_user_s_lock_says_nothing(launch: Path) -> None:
    os.chown(launch / "lock", 65534, 65534)
    assert held(program_of(os.getpid())) == []


@pytest.mark.usefixtures("launch")
def test_what_descends_from_it_is_gathered() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        (found,) = held(program_of(child.pid))
        assert child.pid in found.cgroup.pids() and os.getpid() not in found.cgroup.pids()
        assert (found.id, found.user) == (str(os.getpid()), "ann")
        child.kill()


def test_it_cannot_name_another_process_as_its_launcher(launch: Path) -> None:
    write_owner(launch, 1)
    with subprocess.Popen(["sleep", "60"]) as child:
        (found,) = held(program_of(child.pid))
        assert found.cgroup.pids() == [child.pid] and found.id == str(child.pid)
        child.kill()


def test_a_number_that_is_another_process_s_by_now_moves_nobody(launch: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child, subprocess.Popen(["sleep", "60"]) as stranger:
        write_owner(launch, 1)
        (found,) = held(program_of(child.pid), program_of(stranger.pid, older_ticks=1))
        assert found.cgroup.pids() == [child.pid]
        assert held(program_of(stranger.pid, older_ticks=1)) == []
        for each in (child, stranger):
            each.kill()


def test_children_of_another_process_with_its_number_are_not_its_own() -> None:
    own = identify(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in {each.pid for each in launches._descendants(own)}
        assert launches._descendants(own._replace(started_ticks=own.started_ticks - 1)) == set()
        child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_link_of_another_user_s_is_not_followed(launch: Path, tmp_path: Path) -> None:
    theirs, roots = tmp_path / "theirs", tmp_path / "roots"
    for each in (theirs, roots, roots / "share"):
        each.mkdir()
    (theirs / "link").symlink_to(roots)
    write_owner(launch, os.getpid(), theirs / "link" / "share")
    assert [each.folder for each in held(program_of(os.getpid()))] == [theirs / "link" / "share"]
    os.chown(theirs, 65534, 65534)
    assert held(program_of(os.getpid())) == []


def look_at_a_launch_on_a_server_that_is_gone() -> None:
    """Its folder names a slice there."""
    place, folder = sys.argv[1], Path(sys.argv[2])
    file = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={file},rootmode=40000,user_id=0,group_id=0".encode()
    assert ctypes.CDLL(None).mount(b"gone", place.encode(), b"fuse", 0, options) == 0
    owner = {"engine": None, "pid": os.getpid(), "user": "ann", "quota": "{}", "slice": f"{place}/slice"}
    (folder / "owner").write_text(json.dumps(owner))
    with (folder / "lock").open("w"), subprocess.Popen(["sleep", "600"]) as child:
        programs = Programs(Membership(Listing(print)))
        programs.by_pid = {child.pid: Program(child.pid, read_stat(child.pid).started_ticks, "")}
        looking = launches.Launches(time.monotonic, lambda *words: print(*words, flush=True))
        for _ in range(2):
            print(looking.read(programs), flush=True)
        child.kill()
    os._exit(0)


def test_a_launch_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    """Its user names folders, which may be on a server that is gone: it is left alone, and that is said."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("only root mounts a file system that never answers")
    for name in ("gone", "local-1"):
        (tmp_path / name).mkdir()
    program = text_of(look_at_a_launch_on_a_server_that_is_gone)
    command = ["unshare", "--mount", sys.executable, "-c", program, str(tmp_path / "gone"), str(tmp_path / "local-1")]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=20)
    said = [line for line in seen.stdout.splitlines() if "does not answer" in line]
    assert len(said) == 2 and all(f"a launch is left alone: its folder {tmp_path}" in line for line in said), seen
    assert seen.stdout.splitlines().count("{}") == 2, seen


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes cgroups")
def test_what_a_guard_has_left_is_removed() -> None:
    """Unless something is still in it."""
    try:
        empty, full = (freezer.made_below(os.getpid(), f"vgpurun-local-{name}-{os.getpid()}") for name in "ab")
    except CgroupError as error:
        pytest.skip(str(error))
    with subprocess.Popen(["sleep", "60"]) as child:
        started = identify(child.pid)
        assert started is not None
        full.take_in(started)
        launches.Launches(time.monotonic, print).close()
        assert (empty.folder.exists(), full.folder.exists()) == (False, True)
        child.kill()
    launches.Launches(time.monotonic, print)
    assert not full.folder.exists()
