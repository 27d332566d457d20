"""The folders by which programs on one GPU know of each other: made with each state folder, and gone with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpurun import abi
from vgpurun.errors import StateError
from vgpurun.limits.limits_file import limits_bytes, read_limits, write_limits
from vgpurun.limits.quota import Quota
from vgpurun.storage import state, tenants
from vgpurun.storage.state import StateFolder


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


@pytest.mark.parametrize(("is_open", "mode"), [(True, 0o666), (False, 0o644)])
def test_others_read_what_the_host_and_the_tenant_write(is_open: bool, mode: int) -> None:
    mask = os.umask(0o077)
    try:
        made = container()
        tenants.make(made.path, is_open)
    finally:
        os.umask(mask)
    folder = tenants.folder_of(made.path)
    assert modes(folder) == {"limits": 0o644, "of": 0o644, "turns5": mode}
    assert folder.stat().st_mode & 0o777 == 0o755
    assert tenants.turns_file(made.path).stat().st_size == abi.TURNS_BYTES
    assert read_limits(folder / "limits") == [("GPU-a", Quota(None, 20))]


def test_made_once_and_told_of_each_change() -> None:
    made = container()
    tenants.make(made.path)
    tenants.turns_file(made.path).write_bytes(b"in use")
    tenants.make(made.path)
    assert tenants.turns_file(made.path).read_bytes() == b"in use"
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
        (lock_dir / name / abi.TURNS_NAME).touch()
    for path in (lock_dir / names[0], lock_dir / names[1] / abi.TURNS_NAME):
        os.utime(path, (0, 0))
    (lock_dir / "file").touch()
    state.sweep()
    left = {tenants.folder_of(kept.path).name, tenants.folder_of(away.path).name, "program-3-4", ".new", "file"}
    assert {each.name for each in lock_dir.iterdir()} == left


def test_what_cannot_be_made_is_said(lock_dir: Path) -> None:
    made = container()
    (made.path / "etc" / "limits").unlink()
    with pytest.raises(StateError, match="take turns"):
        tenants.make(made.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_nothing_is_made_for_another_users_limits(lock_dir: Path) -> None:
    made = container()
    os.chown(made.path, 12345, 12345)
    tenants.make(made.path)
    assert not tenants.folder_of(made.path).exists()
