"""Which processes belong to a share: what another user maps or mounts of it makes none of its own belong to it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from support.second_user import UID, attacked_by, needs_two_users, public_folder
from vgpurun.host.drivers import DriverPlan
from vgpurun.launch import plan
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.storage import state
from vgpurun.storage.state import StateFolder
from vgpurun.suspend import processes
from vgpurun.suspend.processes import belongs_to, find

GPUS = make_gpus(1)
QUOTAS = (DeviceQuota(GPUS[0], Quota(2 * GIB, 30)),)
FILES = plan.shared_files(QUOTAS, DriverPlan("host"))
LIBC = ctypes.CDLL(None, use_errno=True)

pytestmark = needs_two_users


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with public_folder() as folder:
        monkeypatch.setenv("VGPURUN_STATE_DIR", str(folder))
        yield folder


@pytest.fixture(params=["process", "slice"])
def share(request: pytest.FixtureRequest) -> Path:
    if request.param == "slice":
        return store.make("team", QUOTAS, FILES).folder
    folder = StateFolder.make(state.new_folder_path(), FILES, {"engine": None})
    folder.close()
    return folder.path


def mapped(file: Path) -> mmap.mmap:
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)


def mounted(file: Path) -> None:
    """In namespaces of its own, in which any user is root."""
    new_user, new_mounts, bind = 0x10000000, 0x00020000, 4096
    assert LIBC.unshare(new_user | new_mounts) == 0
    place = Path(os.environ["VGPURUN_STATE_DIR"], f"of-{UID}", "run")
    (place / "usage").touch()
    assert LIBC.mount(os.fsencode(file), os.fsencode(place / "usage"), None, bind, None) == 0


def test_a_stranger_that_maps_the_limits_belongs_to_no_share(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it neither blocks what is done to the programs of a share, nor is it done to the stranger."""
    with attacked_by(lambda: mapped(share / "etc" / "limits")) as pid:
        monkeypatch.setattr(processes, "read_processes", lambda _: {pid: 1})
        assert not belongs_to(pid, share)
        assert find(share, GPUS) == []


def test_a_stranger_can_neither_map_nor_mount_the_usage_file(root: Path, share: Path) -> None:
    place = root / f"of-{UID}" / "run"
    place.mkdir(parents=True)
    os.chown(place, UID, UID)
    for attack in (mapped, mounted):

        def is_refused(attack: Callable[[Path], object] = attack) -> None:
            with pytest.raises((PermissionError, AssertionError)):
                attack(share / "run" / "usage")

        with attacked_by(is_refused) as pid:
            assert not belongs_to(pid, share)


def test_a_process_of_its_owner_belongs_to_it(share: Path) -> None:
    with mapped(share / "etc" / "limits"):
        assert belongs_to(os.getpid(), share)
    assert not belongs_to(os.getpid(), share)


def test_what_root_has_started_and_made_another_user_belongs_to_it() -> None:
    folder = StateFolder.make(state.new_folder_path(), FILES, {"engine": None})
    folder.close()
    usage = folder.path / "run" / "usage"
    with mapped(usage), attacked_by(lambda: None) as pid:  # a copy of this process, with it
        belongs = belongs_to(pid, folder.path)
        assert belongs, (usage.exists(), Path(f"/proc/{pid}/stat").read_text(), Path(f"/proc/{pid}/maps").read_text())


def test_a_user_of_a_slice_belongs_to_it_and_a_job_is_its_users(root: Path) -> None:
    mine = store.make("mine", QUOTAS, FILES, users=[str(UID)])
    job = store.make("job", QUOTAS, FILES, writer=UID)
    for made in (mine, job):
        with attacked_by(lambda made=made: mapped(made.usage)) as pid:  # type: ignore[misc]
            assert belongs_to(pid, made.folder)
