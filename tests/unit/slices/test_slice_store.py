"""Slices are folders: made, joined, changed and removed by one at a time, for who may."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB, given, make_gpus

from support.second_user import as_second_user, needs_two_users
from vgpurun.admission import removing
from vgpurun.admission.joining import Joining
from vgpurun.admission.wanted import OF_A_SLICE, Wanted, WantedSlice
from vgpurun.errors import OptionError, SliceError
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.mounted import place_of
from vgpurun.inventory.reservations import all_holders
from vgpurun.launch import plan
from vgpurun.limits import limits_file
from vgpurun.limits.model import DeviceQuota, Joined, Limits
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.slices.members import members
from vgpurun.slices.store import Slice
from vgpurun.storage import state, tenants

GPUS = make_gpus(2)
QUOTAS = (DeviceQuota(GPUS[1], Quota(2 * GIB, 30)),)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    return tmp_path


def make(name: str = "alice", **settings: object) -> Slice:
    return store.make(name, QUOTAS, plan.shared_files(QUOTAS, DriverPlan("host")), **settings)


def test_a_slice_is_found_as_it_was_made() -> None:
    made = make(users=["ann", "@lab"])
    assert store.slices() == [made] == [store.find("alice")]
    assert (made.quotas, made.users, made.driver) == (((GPUS[1].uuid, Quota(2 * GIB, 30)),), ("ann", "@lab"), "host")
    assert made.usage.stat().st_mode & 0o777 == 0o666
    assert [path.name for path in store.slices_folder().iterdir()] == ["alice"]


@pytest.mark.parametrize("name", ["bob", "", "..", "alice/", "alice/etc", ".alice"])
def test_another_name_is_not_found(name: str) -> None:
    make()
    with pytest.raises(SliceError, match="existing: alice"):
        store.find(name)


def test_a_name_is_taken_once() -> None:
    made = make()
    for attempt in (make, lambda: store.check_new("alice")):
        with pytest.raises(SliceError, match="already"):
            attempt()
    assert [path.name for path in store.slices_folder().iterdir()] == ["alice"]
    store.remove(made)
    assert store.slices() == []
    make()


@needs_two_users
def test_only_root_makes_slices_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VGPURUN_STATE_DIR")
    with as_second_user(), pytest.raises(SliceError, match="sudo vgpurun slice create"):
        store.check_new("a-name-that-nobody-has")


@needs_two_users
@pytest.mark.parametrize(
    ("user", "users", "may"),
    [
        ("owner", [], True),
        ("ann", [], False),
        ("ann", ["bob", "ann"], True),
        ("ann", ["all"], True),
        ("ann", ["@lab"], True),
        ("ann", ["@others", "lab"], False),
    ],
)
def test_who_may_join(monkeypatch: pytest.MonkeyPatch, public: Path, user: str, users: list[str], may: bool) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(public))
    monkeypatch.setattr(store, "current_user", lambda: "owner")
    make(users=users)
    monkeypatch.setattr(store, "current_user", lambda: user)
    monkeypatch.setattr(store, "groups_of", lambda _: frozenset({"lab"}))
    joining = Joining("alice", GPUS)
    with as_second_user():
        if may:
            assert joining.look().gpus == (GPUS[1],)
        else:
            with pytest.raises(SliceError, match=f"not for user {user}"):
                joining.look()
    assert joining.look().joined is not None, "root may"


def test_its_folder_among_the_tenants_goes_with_it() -> None:
    made = make()
    assert tenants.folder_of(made.folder).exists()
    store.remove(made)
    assert not tenants.folder_of(made.folder).exists()


def test_what_joins_while_it_is_removed_sees_that() -> None:
    made = make()
    with pytest.raises(SliceError, match="just been removed"), Joining("alice", GPUS).granted() as placement:  # noqa: PT012
        assert placement.joined == Joined(made.folder, QUOTAS)
        with store.alone(made):
            store.remove(made)
    with pytest.raises(SliceError, match="cannot be changed"), store.alone(made):
        pass


def test_what_joins_while_its_removal_is_refused_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make()
    refused = threading.Event()

    def join() -> None:
        with Joining("alice", GPUS).granted():
            assert refused.is_set()

    with ThreadPoolExecutor() as pool:
        with store.alone(made), suppress(KeyError), store.being_removed(made):
            joined = pool.submit(join)
            time.sleep(0.2)
            refused.set()
            raise KeyError
        joined.result(20)
    monkeypatch.setattr(store, "_REMOVAL_TAKES_S", 0.1)
    with store.being_removed(made), pytest.raises(SliceError, match="is being removed"), store.joining("alice"):
        pass


def test_a_removal_that_was_killed_holds_up_no_joiner() -> None:
    made = make()
    pid = os.fork()
    if not pid:
        with store.being_removed(made):
            os._exit(0)
    os.waitpid(pid, 0)
    assert (state.read_owner(made.folder) or {})["removed_by"]
    assert Joining("alice", GPUS).look().joined is not None


def test_a_slice_that_was_made_anew_since_it_was_found_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock that is had is that of the old one, and would keep nobody from removing the new one."""
    found, lock_in_time = make(), store.lock_in_time

    def make_anew_before(*arguments: Any) -> bool:
        monkeypatch.setattr(store, "lock_in_time", lock_in_time)
        make_anew()
        return lock_in_time(*arguments)

    def make_anew() -> None:
        found.folder.rename(found.folder.with_name("aside"))  # so that its number is not given to the new one
        make()

    monkeypatch.setattr(store, "lock_in_time", make_anew_before)
    with pytest.raises(SliceError, match="just been removed"), store.alone(found):
        pass
    shutil.rmtree(found.folder.with_name("aside"))
    with pytest.raises(SliceError, match="just been removed"), store.joining("alice"):
        make_anew()
    assert [each.name for each in store.slices()] == ["alice"]


def test_a_slice_of_a_gpu_that_is_gone_says_so() -> None:
    make()
    with pytest.raises(SliceError, match=f"GPU {GPUS[1].uuid}, which this host does not have"):
        Joining("alice", GPUS[:1]).look()


def test_a_slice_holds_and_what_joined_it_does_not(tmp_path: Path) -> None:
    made = make()
    assert [(each.kind, each.name, each.quotas) for each in all_holders(None)] == [
        ("slice", "slice alice", made.quotas)
    ]
    owner = {"engine": None, "pid": os.getpid(), "user": "u", "quota": "[]", "slice": str(made.folder)}
    held = state.StateFolder.make(tmp_path / "containers" / "local-1", {}, owner, has_usage=False)
    assert not (held.path / "run" / "usage").exists()
    assert [each.kind for each in all_holders(None)] == ["slice"]
    with pytest.raises(SliceError, match=f"in use by process {os.getpid()}"):
        removing.remove(made, None, force=False)
    usage = made.usage
    limits = (made.folder / "etc" / "limits").open("rb")
    assert removing.remove(made, None, force=True) == [f"process {os.getpid()}"]
    assert not usage.exists()
    left = tmp_path / "limits"
    left.write_bytes(limits.read())
    assert limits_file.read_limits(left) == [(GPUS[1].uuid, Quota(0, 1))], "who still has the file is granted nothing"
    held.remove()


def test_what_a_killed_command_left_is_swept_and_what_is_being_made_is_not(tmp_path: Path) -> None:
    make("whole")
    files = plan.shared_files(QUOTAS, DriverPlan("host"))
    dead, made = (store.slices_folder() / name for name in (".dead-1", ".made-2"))
    state.StateFolder.make(dead, files, {"slice": "dead"}).close()
    held = state.StateFolder.make(made, files, {"slice": "made"})
    assert [each.name for each in store.slices()] == ["whole"]
    assert [path for path, _ in store.sweep(is_dry_run=True)] == [dead]
    assert dead.exists()
    ((removed, size_bytes),) = store.sweep()
    assert removed == dead and size_bytes > 0
    assert {path.name for path in store.slices_folder().iterdir()} == {"whole", ".made-2"}
    held.remove()


def test_a_change_is_written_down_for_a_limits_file_that_is_lost() -> None:
    made = make()
    changed = store.write_owner(made, [DeviceQuota(GPUS[1], Quota(GIB, 10))], ["ann"])
    assert changed.users == ("ann",)
    (made.folder / "etc" / "limits").write_bytes(b"")
    assert store.find("alice").quotas == ((GPUS[1].uuid, Quota(GIB, 10)),)
    with store.joining("alice"):
        pass
    assert limits_file.read_limits(made.folder / "etc" / "limits") == [(GPUS[1].uuid, Quota(GIB, 10))]


def test_members_are_those_that_have_the_usage_file_mounted(tmp_path: Path) -> None:
    """A /proc as with two containers, of which one is in the slice, a process of the host, and a Slurm job.

    The daemon of the job's step is in the slice as well, and is none of its members.
    """
    made = make()
    proc = tmp_path / "proc"
    ids = {"20": "a" * 64, "30": "b" * 64}
    for pid, namespace in (("self", 1), ("10", 1), ("20", 2), ("21", 2), ("30", 3), ("40", 4), ("41", 4)):
        process = proc / pid
        (process / "ns").mkdir(parents=True)
        for kind in ("mnt", "pid"):
            (process / "ns" / kind).symlink_to(f"{kind}:[{namespace}]")
        (process / "cgroup").write_text(f"0::/system.slice/docker-{ids.get(pid, '')}.scope\n")
        (process / "comm").write_text("slurmstepd\n" if pid == "40" else "any\n")
        (process / "mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    copy = shutil.copytree(made.folder, tmp_path / "copy")
    for pid, usage in (("20", made.usage), ("30", copy / "run" / "usage"), ("40", made.usage), ("41", made.usage)):
        place = place_of(usage)
        with (proc / pid / "mountinfo").open("a") as file:
            file.write(f"2 1 {place.device} {place.path} /.vgpurun/run/usage rw - ext4 /dev/sda1 rw\n")
    found, task = members([made], proc)[made.id]
    assert (found.container, found.pid, found.pid_namespace) == ("a" * 64, 20, 2)
    assert task.pid == (41 if os.geteuid() == 0 else 40)  # a user may give a process that name


@pytest.mark.parametrize("name", OF_A_SLICE)
def test_what_a_slice_decides_is_refused_beside_it(name: str) -> None:
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')} beside --slice"):
        Wanted.take(given(slice_name="alice", **{name: "1"}))


def test_the_defaults_of_the_configuration_are_not_a_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_MEM", "1g")
    assert Wanted.take(given(slice_name="alice")) == WantedSlice("alice")
    wanted = Wanted.take(given())
    assert isinstance(wanted, Wanted) and wanted.limits == Limits.read("1g", None)
