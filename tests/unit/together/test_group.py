"""The folder by which a group's members and its keeper know of each other."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from vgpurun.errors import TogetherError
from vgpurun.host.mps import CONTROL
from vgpurun.together import server
from vgpurun.together.group import ENV_PIPES, MEMBERS, Group, is_member, is_mounted


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "team").mkdir()
    return Group.of(tmp_path / "team")


def program(shell: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """A program that waits; the kernel shows its environment once it has said something."""
    process = subprocess.Popen([shell, "-c", "echo; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert process.stdout and process.stdout.readline()
    return process


def test_members_share_a_lock_that_keeps_the_keeper(group: Group) -> None:
    with group.joined() as one, group.joined() as other:
        assert one != other and group.folder.stat().st_mode & 0o777 == 0o700
        lock = os.open(group.folder / MEMBERS, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert server.sweep() == [], "it has members"
        os.close(lock)
    assert [folder for folder, _ in server.sweep(is_dry_run=True)] == [group.folder]
    assert group.folder.exists() and server.sweep() and not group.folder.exists()


def test_offered_pipes_stay_where_containers_have_them_as_long_as_the_slice(group: Group) -> None:
    pipes = group.offer()
    offered = pipes.stat()
    assert pipes == group.pipes and offered.st_mode & 0o777 == 0o700 and server.sweep() == []
    group.write_record({})
    (pipes / "control").touch()
    (group.folder / "log").mkdir()
    assert [folder for folder, _ in server.sweep()] == [group.folder]
    assert {each.name for each in group.folder.iterdir()} == {MEMBERS, "pipe", "slice"}
    assert os.path.samestat(pipes.stat(), offered) and not list(pipes.iterdir())
    assert group.slice_folder
    group.slice_folder.rename(group.slice_folder.with_name("before"))
    group.slice_folder.mkdir()
    assert server.sweep() and not group.folder.exists(), "another slice of that name does not keep it"


@pytest.mark.parametrize("name", ["group", "pipe"])
def test_no_link_is_taken_for_a_folder_of_the_group(group: Group, tmp_path: Path, name: str) -> None:
    """Engines would mount what it leads to into containers, and a server's start would empty that."""
    link = group.folder if name == "group" else group.pipes
    link.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TogetherError, match=r"cannot use .*: it is no folder"):
        group.offer()


def test_no_depth_of_what_a_container_puts_into_the_pipes_outlasts_a_sweep(group: Group, tmp_path: Path) -> None:
    """No link that it leaves there is followed."""
    (tmp_path / "kept" / "inner").mkdir(parents=True)
    pipes = group.offer()
    folder = os.open(pipes, os.O_RDONLY)
    for _ in range(1500):  # deeper than Python calls itself, and more than a process has files open
        os.mkdir("deep", dir_fd=folder)
        os.mkdir("beside", dir_fd=folder)
        os.symlink(tmp_path / "kept", "link", dir_fd=folder)
        above, folder = folder, os.open("deep", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    assert [each for each, _ in server.sweep(is_dry_run=True)] == [group.folder] == [each for each, _ in server.sweep()]
    assert not list(pipes.iterdir()) and server.sweep() == [] and (tmp_path / "kept" / "inner").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
def test_folders_of_other_users_are_left_alone(group: Group, tmp_path: Path) -> None:
    """Their files are theirs, and may be links to others'."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    assert group.slice_folder
    group.folder.mkdir(parents=True)
    (group.folder / "slice").symlink_to(group.slice_folder)
    group.pipes.symlink_to(kept)
    os.chown(group.folder, pwd.getpwnam("nobody").pw_uid, -1)
    group.folder.with_name("1").symlink_to(kept)
    assert server.sweep(is_dry_run=True) == server.sweep() == []
    assert [each.name for each in kept.iterdir()] == ["file"], "root has removed or made nothing there"


def test_what_a_keeper_keeps_for_containers_is_left_to_it(group: Group) -> None:
    """A container in the background holds no lock: its launch has ended."""
    with ExitStack() as keeper:
        with group.joined():
            keeper.enter_context(group.kept())
        assert group.is_kept() and server.sweep() == [] and group.folder.exists()
    assert not group.is_kept() and server.sweep() and not group.folder.exists()


def test_only_what_the_kernel_says_makes_a_process_a_member(group: Group) -> None:
    def started(**options: Any) -> bool:
        with program("sh", **options) as process:
            is_one = is_member(Path(f"/proc/{process.pid}"), group)
            process.kill()
        return is_one

    with group.joined() as lock:
        group.pipes.mkdir()
        assert not started(), "any process of this user"
        assert started(pass_fds=[lock])
        assert started(env={**os.environ, ENV_PIPES: str(group.pipes)})
    assert not is_member(Path("/proc/0"), group)


def test_a_daemon_that_was_started_later_is_not_killed(group: Group, tmp_path: Path) -> None:
    """Its keeper is the next one; what was started before is of one that was killed."""
    shell = Path(shutil.copy("/bin/sh", tmp_path / CONTROL))
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME) - 1
    with program(shell, env={ENV_PIPES: str(group.pipes)}) as daemon:
        server.kill(group.pipes, before_s)
        assert daemon.poll() is None
        server.kill(group.pipes)
        assert daemon.wait() == -signal.SIGKILL


def test_a_slice_that_was_made_anew_has_another_group(group: Group, tmp_path: Path) -> None:
    (tmp_path / "team").rename(tmp_path / "before")
    (tmp_path / "team").mkdir()
    assert Group.of(tmp_path / "team").folder != group.folder


def test_a_record_that_is_none_says_nothing(group: Group) -> None:
    assert group.record() == {} and not group.is_kept()
    with group.joined():
        (group.folder / "keeper").write_text("[1]")
        assert group.record() == {} and not group.is_kept()


def test_a_path_that_is_too_long_for_a_socket_is_refused(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", f"/tmp/{'long' * 25}")
    with pytest.raises(TogetherError, match=r"too long for a socket's path; set VGPURUN_STATE_DIR"):
        group.check_path()


def test_a_folder_of_another_user_is_refused(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.folder.parent.mkdir(parents=True)
    group.folder.mkdir()
    os.chown(group.folder, 12345, -1) if os.geteuid() == 0 else pytest.skip("takes root")
    with pytest.raises(TogetherError, match="it is another user's"), group.joined():
        pass


def test_what_nobody_has_mounted_is_not(group: Group) -> None:
    with group.joined():
        group.pipes.mkdir()
        assert not is_mounted(group.pipes)
