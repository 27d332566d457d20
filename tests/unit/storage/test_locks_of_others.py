"""Another user takes all locks that it can below the state folder, for ever: nobody waits for it or believes it."""

from __future__ import annotations

import grp
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from support.second_user import attacked_by, become_second_user, lock_everything_below, needs_two_users, public_folder
from vgpurun.admission import removing
from vgpurun.admission.joining import Joining
from vgpurun.errors import SliceError, StateError
from vgpurun.host.drivers import DriverPlan
from vgpurun.inventory.reservations import local_processes
from vgpurun.launch import plan
from vgpurun.limits import update
from vgpurun.limits.model import DeviceQuota, quotas_to_json
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.slices.store import Slice
from vgpurun.slurm import node
from vgpurun.storage import state
from vgpurun.storage.state import StateFolder

GPUS = make_gpus(1)
QUOTAS = (DeviceQuota(GPUS[0], Quota(2 * GIB, 30)),)

pytestmark = needs_two_users


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with public_folder() as folder:
        monkeypatch.setenv("VGPURUN_STATE_DIR", str(folder))
        yield folder


@dataclass(frozen=True)
class Container:
    """A container, as far as a change of limits needs one."""

    limits_folder: Path
    id: str = "1"
    name: str = "one"


def make(engine: str | None = None) -> StateFolder:
    files = plan.shared_files(QUOTAS, DriverPlan("host"))
    owner = {"engine": engine, "pid": os.getpid(), "user": "root", "quota": quotas_to_json(QUOTAS)}
    return StateFolder.make(state.new_folder_path("local"), files, owner)


def make_slice(**settings: object) -> Slice:
    return store.make("team", QUOTAS, plan.shared_files(QUOTAS, DriverPlan("host")), **settings)  # type: ignore[arg-type]


def alive_as_second_user(folder: Path) -> bool:
    """Ask in a process of the second user."""
    pid = os.fork()
    if not pid:
        become_second_user()
        os._exit(state.is_alive(folder))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_what_a_process_held_that_has_ended_is_free(root: Path) -> None:
    local, container = make(), make("engine")
    with attacked_by(lambda: lock_everything_below(root)):
        for folder in (local, container):
            folder.close()
        assert list(local_processes()) == []
        assert {path for path, _ in state.sweep(lambda: ("engine", set()))} == {local.path, container.path}
    assert not local.path.exists() and not container.path.exists()


def test_to_another_user_a_folder_is_held_as_long_as_its_process_lives(root: Path) -> None:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        local = make()
        local.note_holders([child])
        local.close()
        with attacked_by(lambda: lock_everything_below(root)):
            assert alive_as_second_user(local.path)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not alive_as_second_user(local.path), "a PID that ended is nobody's, whatever anybody locks"


def test_a_new_folder_cannot_be_won_by_what_waits_for_it(root: Path) -> None:
    """By inotify, or by asking again and again: it opens the folder in the moment in which it is made."""
    (root / "containers").mkdir()

    def win() -> None:
        threading.Thread(target=try_again_and_again, daemon=True).start()

    def try_again_and_again() -> None:
        while lock_everything_below(root / "containers"):
            pass

    with attacked_by(win):
        for _ in range(20):
            began = time.monotonic()
            folder = make()
            assert time.monotonic() - began < 5
            folder.close()
        state.sweep()
    assert os.listdir(root / "containers") == []


def test_the_limits_of_a_container_can_be_changed(root: Path) -> None:
    folder = make("engine")
    folder.close()
    container = Container(folder.path)
    with attacked_by(lambda: lock_everything_below(root)):
        began = time.monotonic()
        assert not update.is_being_changed(container)
        update.set_paused(container, True)
        assert time.monotonic() - began < 5


def test_a_slice_is_joined_changed_and_removed(root: Path) -> None:
    make_slice(users=["all"])
    with attacked_by(lambda: lock_everything_below(root)):
        began = time.monotonic()
        assert Joining("team", GPUS).look().joined is not None
        with store.alone(store.find("team")) as found:
            store.write_owner(found, users=[])
        assert removing.remove(found, None, force=True) == []
        assert time.monotonic() - began < 4
    with pytest.raises(SliceError):
        store.find("team")


def test_a_job_ends_and_its_slice_with_it(root: Path) -> None:
    made = store.make("slurm-7", QUOTAS, plan.shared_files(QUOTAS, DriverPlan("host")), writer=61235)
    with attacked_by(lambda: lock_everything_below(root)):
        ended = node.end_job("7")
        assert ended and ended.killed == [] and not made.folder.exists()


def may_open(usage: Path, uid: int, gids: Sequence[int] = ()) -> bool:
    """Ask in a process of that user."""
    pid = os.fork()
    if not pid:
        os.setgroups([*gids])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os._exit(os.access(usage, os.W_OK))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_only_a_slices_users_can_open_its_usage_file() -> None:
    made = make_slice(users=["61235", "@daemon"], user="61236")
    group = grp.getgrnam("daemon").gr_gid
    assert [may_open(made.usage, uid) for uid in (61234, 61235, 61236)] == [False, True, True]
    assert may_open(made.usage, 61234, [group])
    store.write_owner(made, users=["61234"])
    assert [may_open(made.usage, uid) for uid in (61234, 61235, 61236)] == [True, False, True]
    assert not may_open(made.usage, 61235, [group])
    for users, may in (([], False), (["all"], True)):
        store.write_owner(made, users=users)
        assert may_open(made.usage, 61237) is may
    store.remove(made)
    made = make_slice(writer=61235)
    assert [may_open(made.usage, uid) for uid in (61234, 61235)] == [False, True]
    store.write_owner(made, users=["61234"])
    assert not may_open(made.usage, 61234), "a job's is of its user alone"


def test_a_slice_of_an_older_version_is_closed_to_others_when_root_joins_or_changes_it() -> None:
    made = make_slice(users=["61235"])
    made.usage.parent.chmod(0o755)
    for name in ("lock", "changing"):
        (made.folder / name).unlink()
    assert may_open(made.usage, 61234)
    assert Joining("team", GPUS).look().joined is not None
    assert [may_open(made.usage, uid) for uid in (61234, 61235)] == [False, True]
    assert removing.remove(made, None, force=False) == []


def test_a_file_system_without_access_lists_lets_root_alone_in_and_says_so(root: Path) -> None:
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", root], capture_output=True).returncode:
        pytest.skip("needs the right to mount a ramfs")
    try:
        root.chmod(0o755)
        with pytest.raises(StateError, match="no access lists"):
            make_slice(users=["61235"])
        assert store.slices() == [] and os.listdir(store.slices_folder()) == []
        made = make_slice(user="root")
        assert not may_open(made.usage, 61235) and may_open(made.usage, 0)
        made = store.write_owner(made, users=["all"])
        assert may_open(made.usage, 61235)
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)
