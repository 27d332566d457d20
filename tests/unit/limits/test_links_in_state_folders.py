"""A state folder may be its user's own, and root in a container that mounts it can write there: links lead nowhere."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.second_user import UID, needs_two_users
from vgpurun import abi
from vgpurun.errors import StateError
from vgpurun.guard import notice_file
from vgpurun.inventory import swap_counts
from vgpurun.inventory.guarded import Action, Done
from vgpurun.limits import limits_file
from vgpurun.limits.nested import folders_above
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import changing
from vgpurun.storage import state, tenants
from vgpurun.suspend import record
from vgpurun.suspend.processes import belongs_to
from vgpurun.suspend.record import Phase, Record
from vgpurun.suspend.targets import Target

LIMITS = [("GPU-a", Quota(1 << 30, 30))]
SUSPENSION = Record(Phase.SUSPENDED)
DONE = Done(1, 0.0, Action("warn", "cause", "words", "name", "user"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(abi, "LOCK_DIR", str(tmp_path / "vgpulock"))
    (tmp_path / "state").mkdir(mode=0o755)
    return tmp_path / "state"


def made(root: Path, name: str) -> Path:
    folder = root / name
    content = limits_file.limits_bytes(LIMITS)
    state.StateFolder.make(folder, {"etc/limits": content}, {"container": name}).close()
    return folder


@pytest.fixture
def theirs(root: Path) -> Path:
    """The folder of a container of others."""
    return made(root, "theirs")


@pytest.fixture
def linked(root: Path, theirs: Path) -> Path:
    """A folder whose etc is a link to theirs."""
    folder = made(root, "linked")
    (folder / "etc").rename(folder / "aside")
    (folder / "etc").symlink_to(theirs / "etc")
    return folder


ACTS: dict[str, Callable[[Path], object]] = {
    "read limits": lambda folder: limits_file.read_limits(folder / "etc" / "limits"),
    "write limits": lambda folder: limits_file.write_limits(folder / "etc" / "limits", []),
    "suspend": lambda folder: limits_file.set_suspended(folder / "etc" / "limits", abi.SUSPENDED),
    "move": lambda folder: limits_file.write_gpus(folder / "etc" / "limits", [], has_moved=True),
    "tell": lambda folder: notice_file.tell(folder, DONE),
}


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("owner", [os.geteuid(), pytest.param(UID, marks=needs_two_users)])
def test_a_link_in_the_place_of_etc_is_not_followed(linked: Path, theirs: Path, owner: int, act: str) -> None:
    os.chown(linked, owner, -1)
    before = content_of(theirs)
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        ACTS[act](linked)
    assert content_of(theirs) == before


def test_what_has_the_limits_of_others_mapped_belongs_to_them_alone(linked: Path, theirs: Path) -> None:
    """Else the guard would suspend it for the sake of the other."""
    with (theirs / "etc" / "limits").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert belongs_to(os.getpid(), theirs)
        assert not belongs_to(os.getpid(), linked)


WRITES: dict[str, Callable[[Path], object]] = {
    "owner": lambda folder: state.write_owner(folder, {"container": "another"}),
    "suspension": lambda folder: record.write(folder, SUSPENSION),
    "its end": record.forget,
    "change": lambda folder: changing(Target("", "", folder)).__enter__(),
}
SILENT: dict[str, Callable[[Path], object]] = {
    "turns": lambda folder: swap_counts.add_swap(folder, 1, 1.0),
    "is it held": state.is_held,
}


@needs_two_users
@pytest.mark.parametrize("what", [*WRITES, *SILENT])
@pytest.mark.parametrize("at", ["the folder", "a folder around it"])
def test_root_writes_nowhere_else_than_into_the_folder_itself(root: Path, theirs: Path, what: str, at: str) -> None:
    """Its user may put a link there, or in the place of any folder around it that is his own."""
    home = root / "home"
    home.mkdir()
    (home / "link").symlink_to(theirs if at == "the folder" else root)
    os.chown(home, UID, UID)
    record.write(theirs, SUSPENSION)
    before = content_of(theirs)
    folder = home / "link" if at == "the folder" else home / "link" / theirs.name
    if what in SILENT:
        SILENT[what](folder)
    else:
        with pytest.raises((OSError, StateError), match=r"Not a directory|symbolic link"):
            WRITES[what](folder)
    assert content_of(theirs) == before


def test_a_file_is_replaced_whole(theirs: Path) -> None:
    record.write(theirs, SUSPENSION)
    assert record.read(theirs) == SUSPENSION and (theirs / record.FILE).stat().st_mode & 0o777 == 0o644
    assert not [path for path in theirs.iterdir() if path.name.startswith(".")]


def test_the_share_around_another_is_what_its_link_says(root: Path, theirs: Path) -> None:
    folder = root / "part"
    content = limits_file.limits_bytes(LIMITS, has_parent=True)
    state.StateFolder.make(folder, {"etc/limits": content}, {}, links={"parent": str(theirs)}).close()
    assert folders_above(folder) == [theirs]


def test_a_link_in_the_place_of_the_folder_of_tenants_is_not_swept(root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious" / ".old").mkdir(parents=True)
    os.utime(tmp_path / "precious" / ".old", (0, 0))
    (tmp_path / "vgpulock").symlink_to(tmp_path / "precious")
    tenants.sweep()
    assert (tmp_path / "precious" / ".old").exists()
