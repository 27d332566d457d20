"""The folders by which programs on one GPU know of each other: made with each state folder, and gone with it."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from vgpurun import abi
from vgpurun.errors import StateError
from vgpurun.limits.limits_file import limits_bytes, read_limits, write_limits
from vgpurun.limits.quota import Quota
from vgpurun.storage import state, tenants
from vgpurun.storage.state import StateFolder

STRANGER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(abi, "LOCK_DIR", str(tmp_path / "tenants"))
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "tenants"


def container() -> StateFolder:
    files = {"etc/limits": limits_bytes([("GPU-a", Quota(None, 20))])}
    return StateFolder.make(state.new_folder_path(), files, {"engine": None})


def modes(folder: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}


@pytest.mark.parametrize(("writer", "mode"), [(None, 0o666), (os.geteuid(), 0o644)])
def test_others_read_what_the_host_and_the_tenant_write(writer: int | None, mode: int) -> None:
    mask = os.umask(0o077)
    try:
        made = container()
        tenants.make(made.path, writer)
    finally:
        os.umask(mask)
    folder = tenants.folder_of(made.path)
    assert modes(folder) == {"limits": 0o644, "of": 0o644, "presence1": mode}
    assert folder.stat().st_mode & 0o777 == 0o755
    assert tenants.presence_file(made.path).stat().st_size == abi.PRESENCE_BYTES
    assert read_limits(folder / "limits") == [("GPU-a", Quota(None, 20))]


def test_made_once_and_told_of_each_change() -> None:
    made = container()
    tenants.make(made.path)
    tenants.presence_file(made.path).write_bytes(b"in use")
    tenants.make(made.path)
    assert tenants.presence_file(made.path).read_bytes() == b"in use"
    write_limits(made.path / "etc" / "limits", [("GPU-a", Quota(None, 70))])
    assert read_limits(tenants.folder_of(made.path) / "limits") == [("GPU-a", Quota(None, 70))]


def test_limits_of_a_container_of_an_older_version_change_all_the_same() -> None:
    made = container()
    write_limits(made.path / "etc" / "limits", [("GPU-a", Quota(None, 70))])
    assert not tenants.folder_of(made.path).exists()


def test_gone_with_the_state_folder(lock_dir: Path) -> None:
    made = container()
    tenants.make(made.path)
    made.remove()
    assert list(lock_dir.iterdir()) == []


def test_what_is_left_is_swept_and_nothing_else(lock_dir: Path, tmp_path: Path) -> None:
    kept, lost, away = container(), container(), StateFolder.make(tmp_path / "disk" / "x", {"etc/limits": b""}, {})
    for each in (kept, lost, away):
        tenants.make(each.path)
    lost.path.rename(tmp_path / "moved")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    names = (".half-made", "program-1-2", "program-3-4", ".new")
    for name in names:
        (lock_dir / name).mkdir()
        (lock_dir / name / abi.PRESENCE_NAME).touch()
    for path in (lock_dir / names[0], lock_dir / names[1] / abi.PRESENCE_NAME):
        os.utime(path, (0, 0))
    (lock_dir / "file").touch()
    state.sweep()
    left = {tenants.folder_of(kept.path).name, tenants.folder_of(away.path).name, "program-3-4", ".new", "file"}
    assert {each.name for each in lock_dir.iterdir()} == left


def left_by(user: int, name: str, age_s: float, *files: str) -> Path:
    """A folder of another user, written so long ago."""
    folder = Path(abi.LOCK_DIR) / name
    folder.mkdir(parents=True)
    for file in (abi.PRESENCE_NAME, *files):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    os.utime(folder / abi.PRESENCE_NAME, (0, time.time() - age_s))
    os.chown(folder, user, -1)
    return folder


@AS_ROOT
def test_root_sweeps_what_other_users_have_left(lock_dir: Path) -> None:
    kept = container()
    tenants.make(kept.path)
    names = {tenants.folder_of(kept.path).name}
    for user in (STRANGER, STRANGER + 1):
        names |= {left_by(user, f"{user}-{number}", 3500 + number, "of").name for number in range(256)}
        for number in range(2):
            left_by(user, f"{user}-older-{number}", 4000, "limits")
            left_by(user, f"program-{user}-{number}", 25 * 3600)
            left_by(user, f"{user}-of-the-future-{number}", -4000)
        names |= {left_by(user, f"program-{user}-new", 3 * 3600).name}
    names |= {left_by(STRANGER, f"at-work-{number}", 10 * number).name for number in range(3)}
    state.sweep()
    assert names - {each.name for each in lock_dir.iterdir()} == {f"{STRANGER}-{number}" for number in (253, 254, 255)}
    assert {each.name for each in lock_dir.iterdir()} <= names


@AS_ROOT
def test_a_sweep_removes_no_more_than_a_launch_waits_for(lock_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "_MOST_REMOVED", 10)
    for number in range(25):
        left_by(STRANGER, f"program-{number}", 25 * 3600)
    assert [tenants.sweep_others() for _ in range(3)] == [True, True, False]
    assert list(lock_dir.iterdir()) == []


@AS_ROOT
def test_one_folder_that_cannot_be_read_keeps_no_other(lock_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        left_by(STRANGER, f"program-{number}", (25 - number) * 3600 * 24)
    remove = tenants._remove_flat

    def remove_all_but_one(place: int, left: tenants._Left) -> bool:
        if left.name == "program-1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return remove(place, left)

    monkeypatch.setattr(tenants, "_remove_flat", remove_all_but_one)
    tenants.sweep_others()
    assert [each.name for each in lock_dir.iterdir()] == ["program-1"]


@AS_ROOT
def test_what_another_user_has_made_deep_or_leads_elsewhere_is_let_alone(lock_dir: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "x").mkdir(parents=True)
    deep = left_by(STRANGER, "program-deep", 25 * 3600, "a/b")
    link = left_by(STRANGER, "program-link", 25 * 3600) / "link"
    link.symlink_to(precious)
    many = left_by(STRANGER, "program-many", 25 * 3600, *map(str, range(40)))
    (lock_dir / "program-elsewhere").symlink_to(precious)
    os.chown(lock_dir / "program-elsewhere", STRANGER, -1, follow_symlinks=False)
    os.utime(lock_dir / "program-elsewhere", (0, 0), follow_symlinks=False)
    assert not tenants.sweep_others()
    assert {each.name for each in lock_dir.iterdir()} == {deep.name, many.name}
    assert (deep / "a" / "b").exists() and (precious / "x").exists()
    while many.exists():  # a day later, each time
        os.utime(many, (0, 0))
        tenants.sweep_others()


@AS_ROOT
def test_what_is_where_a_link_leads_makes_nothing_younger(lock_dir: Path, tmp_path: Path) -> None:
    """Root never follows a user's link: its target may never answer."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / abi.PRESENCE_NAME).touch()
    lock_dir.mkdir()
    link = lock_dir / "program-link"
    link.symlink_to(tmp_path / "elsewhere")
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    os.utime(link, (0, 0), follow_symlinks=False)
    tenants.sweep_others()
    assert list(lock_dir.iterdir()) == []


def test_what_cannot_be_made_is_said(lock_dir: Path) -> None:
    made = container()
    (made.path / "etc" / "limits").unlink()
    with pytest.raises(StateError, match="see each other"):
        tenants.make(made.path)
    assert list(lock_dir.iterdir()) == [], "nothing half-made"


@AS_ROOT
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "file"])
def test_what_another_user_has_put_in_its_place_is_replaced(lock_dir: Path, tmp_path: Path, kind: str) -> None:
    """The names of slices are known beforehand, and so are their folders."""
    made, target = container(), tmp_path / "target"
    place = tenants.folder_of(made.path)
    lock_dir.mkdir()
    os.chown(lock_dir, STRANGER, STRANGER)
    for folder in (target, place) if kind == "folder" else (target,):
        folder.mkdir()
        for name in ("limits", "of", abi.PRESENCE_NAME):
            (folder / name).write_text("a stranger's")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "file":
        place.touch()
    elif kind == "link":
        place.symlink_to(target)
    else:
        os.chown(place, STRANGER, STRANGER)
    tenants.make(made.path)
    assert lock_dir.stat().st_uid == 0 and lock_dir.stat().st_mode & 0o7777 == 0o1777, "whose owner could replace it"
    assert place.lstat().st_uid == 0 and read_limits(place / "limits") == [("GPU-a", Quota(None, 20))]
    assert {each.read_text() for each in target.iterdir()} == {"a stranger's"}


@AS_ROOT
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("link to a folder", "Not a directory"),
        ("link", "symbolic links"),
        ("pipe", "No such device"),
        ("file", "another user"),
    ],
)
def test_new_limits_are_told_to_nothing_of_a_stranger(lock_dir: Path, tmp_path: Path, kind: str, why: str) -> None:
    made, target = container(), tmp_path / "limits"
    tenants.make(made.path)
    place = tenants.folder_of(made.path)
    target.write_text("precious")
    shutil.rmtree(place)
    if kind == "link to a folder":
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
    if kind == "link":
        (place / "limits").symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(place / "limits")
    elif kind == "file":
        (place / "limits").touch()
        os.chown(place / "limits", STRANGER, STRANGER)
    with pytest.raises(OSError, match=why):
        write_limits(made.path / "etc" / "limits", [("GPU-a", Quota(None, 70))])
    assert target.read_text() == "precious"


@AS_ROOT
@pytest.mark.parametrize("by", ["link", "folder"])
def test_what_is_half_made_may_be_replaced_at_any_time(
    lock_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By the owner of a folder that this user cannot take over: nothing is written or opened where a link leads."""
    made, target = container(), tmp_path / "target"
    target.mkdir(mode=0o700)
    fill = tenants._fill

    def replaced(half_made: Path, contents: Mapping[str, tuple[bytes, int]]) -> None:
        half_made.rmdir()
        if by == "link":
            half_made.symlink_to(target)
        else:
            half_made.mkdir()
            (half_made / abi.PRESENCE_NAME).symlink_to(target / "made")
        fill(half_made, contents)

    monkeypatch.setattr(tenants, "_fill", replaced)
    with pytest.raises(StateError, match="see each other"):
        tenants.make(made.path)
    assert list(target.iterdir()) == [] and target.stat().st_mode & 0o777 == 0o700


@AS_ROOT
def test_nothing_is_made_for_another_users_limits(lock_dir: Path) -> None:
    made = container()
    os.chown(made.path, 12345, 12345)
    tenants.make(made.path)
    assert not tenants.folder_of(made.path).exists()


def test_a_place_that_somebody_takes_again_is_ours_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name follows from the state folder's, and the folder of all tenants is open to all."""
    made = container()
    place, clear, times = tenants.folder_of(made.path), tenants._clear, iter(range(9))

    def clear_and_lose(path: Path) -> None:
        clear(path)
        if next(times) < 5:
            (path / "of").mkdir(parents=True)

    monkeypatch.setattr(tenants, "_clear", clear_and_lose)
    tenants.make(made.path)
    assert modes(place) == {"limits": 0o644, "of": 0o644, "presence1": 0o666}
