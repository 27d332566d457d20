"""Processes as the guard tells them apart and ends them, by the kernel's own word."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cgroup_maker import ID, running, state_of

from support import wait_until
from support.programs import text_of
from support.second_user import attacked_by, lock_everything_below, public_folder
from vgpurun import abi
from vgpurun.errors import GuardError
from vgpurun.guard.hands import kill, let_dying_go
from vgpurun.guard.outside import program_of
from vgpurun.guard.processes import is_counted_elsewhere, is_ending
from vgpurun.guard.state import State
from vgpurun.guard.upkeep import follow
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.inventory.guarded import FREEZE, Action
from vgpurun.storage.state import StateFolder, new_folder_path
from vgpurun.util.process_identity import read_stat
from vgpurun.util.users import name_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")


def test_a_pending_kill_lets_go(make_cgroup: Callable[[str], Cgroup]) -> None:
    """Alone: a tenant may have one of its processes killed by a timer, and is not to go on for that."""
    cgroup = make_cgroup(ID)
    with running(cgroup) as pid, running(cgroup) as other:
        cgroup.freeze()
        let_dying_go(cgroup)
        assert sorted(cgroup.pids()) == sorted([pid, other])
        os.kill(pid, signal.SIGKILL)
        let_dying_go(cgroup)
        wait_until(lambda: is_ending(pid))
        wait_until(lambda: cgroup.pids() == [other])
        assert cgroup.is_frozen() and cgroup._has_settled() and not is_ending(other)


def test_what_an_engine_leaves_of_a_container_is_removed(
    make_cgroup: Callable[[str], Cgroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine gives up removing the cgroup while processes end in it; a container would start frozen there."""
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    cgroup, said = make_cgroup(ID), list[str]()
    state = State(said.append)
    with running(cgroup) as pid:
        frozen = Action(
            FREEZE, "memory", "", "a", "ann", ID, str(cgroup.folder), cgroup.is_unified, run_of(cgroup)
        )  # fmt: skip
        state.begin(frozen)
        cgroup.freeze()
        follow(state, said.append)
        assert ID in state.stopped
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: follow(state, said.append) or not state.stopped)
    state.close()
    assert not cgroup.folder.exists() and not said


def test_a_program_has_no_name_that_a_user_mounts_it_at(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()
    disguise = tmp_path / "Xorg"
    disguise.touch()
    mounting = ("unshare", "-m", "sh", "-c", f'mount --bind {python} {disguise} && exec {disguise} "$@"')
    with running(None) as plain, running(None, *mounting) as disguised:
        assert Path(f"/proc/{disguised}/exe").readlink() == disguise
        assert (program_of(plain), program_of(disguised)) == (python.name, "")


def test_the_end_of_a_process() -> None:
    program = "import os, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(flush=True)"
    leaderless = f"{program}; import ctypes; ctypes.CDLL(None).syscall(60, 0)"  # exit: of this thread alone
    with subprocess.Popen([sys.executable, "-c", leaderless], stdout=subprocess.PIPE) as process:
        wait_until(lambda: state_of(process.pid) == "Z")
        assert not is_ending(process.pid), "its other thread goes on"
        process.kill()
        wait_until(lambda: is_ending(process.pid))
    assert is_ending(process.pid), "it is gone"


def test_another_process_of_that_number_is_left_alone() -> None:
    with running(None) as pid:
        started, user = read_stat(pid).started_ticks, name_of(os.getuid())
        kill(Action("kill", "outside", "", "x", user, pid=pid, started_ticks=started - 1))
        with pytest.raises(GuardError, match=f"not user ann's any more, but {user}'s"):
            kill(Action("kill", "outside", "", "x", "ann", pid=pid, started_ticks=started))
        time.sleep(0.1)
        assert not is_ending(pid)
        kill(Action("kill", "outside", "", "x", user, pid=pid, started_ticks=started))
        wait_until(lambda: is_ending(pid))
        kill(Action("kill", "outside", "", "x", user, pid=pid, started_ticks=started))


def sleep() -> None:
    print(flush=True)
    time.sleep(600)


def hold() -> None:
    """Count in the first slot of a usage file."""
    file = os.open(sys.argv[1], os.O_RDWR)
    lock = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET, 1, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    namespace = int(os.readlink("/proc/self/ns/pid")[5:-1])
    os.pwrite(file, struct.pack("II", os.getpid(), namespace), abi.Usage.processes.offset)
    sleep()


USAGE = bytes(abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=1))


def test_what_the_library_counts_elsewhere_is_not_outside(tmp_path: Path) -> None:
    """A process of `vgpurun local` has a slot in the file that its environment names; a claim alone is not enough."""
    usage = tmp_path / "usage"
    usage.write_bytes(USAGE)
    named = {**os.environ, abi.ENV_USAGE_FILE: str(usage)}
    found = []
    for program, environment in ((sleep, named), (hold, dict(os.environ)), (hold, named)):
        command = [sys.executable, "-c", text_of(program), usage]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            found.append(is_counted_elsewhere(process.pid))
            process.kill()
    assert found == [False, False, True] and not is_counted_elsewhere(process.pid)


def test_no_lock_of_another_user_makes_a_counted_process_one_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user who locks its slot could have root end it."""
    with public_folder() as root:
        monkeypatch.setenv("VGPURUN_STATE_DIR", str(root))
        folder = StateFolder.make(new_folder_path("local"), {}, {"engine": None})
        usage = folder.path / "run" / "usage"
        with usage.open("r+b") as file:
            file.write(USAGE)
        with attacked_by(lambda: lock_everything_below(root)):
            environment = {**os.environ, abi.ENV_USAGE_FILE: str(usage)}
            command = [sys.executable, "-c", text_of(hold), usage]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
                is_counting = process.stdout.readline() == b"\n"
                assert is_counting and is_counted_elsewhere(process.pid)
                process.kill()
        folder.close()
