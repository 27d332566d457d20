"""State folders: made whole or not at all, open to any user of the container, and swept when they are stale."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable
from contextlib import closing
from ctypes import sizeof
from pathlib import Path
from typing import Any

import pytest

from support.second_user import as_second_user, needs_two_users
from vgpurun import abi
from vgpurun.errors import StateError
from vgpurun.inventory.reservations import local_processes
from vgpurun.storage import state
from vgpurun.storage.state import StateFolder
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.times import boot_s

FILES = {"etc/limits": b"limits", "etc/ld.so.preload": b"library\n"}


@pytest.fixture(autouse=True)
def root_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def make(engine: str | None = "engine", name: str = "x") -> StateFolder:
    return StateFolder.make(state.new_folder_path(name), FILES, {"engine": engine})


def owner_of(folder: Path) -> dict[str, Any]:
    """Return what a launch has written down, without its process."""
    owner = state.read_owner(folder) or {}
    return {key: value for key, value in owner.items() if key != "holders"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@needs_two_users
def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert state.root_folder() == tmp_path / "state"
    monkeypatch.delenv("VGPURUN_STATE_DIR")
    assert state.root_folder() == Path("/var/lib/vgpurun")
    with as_second_user():
        monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
        assert state.root_folder() == Path("/somewhere/vgpurun")
        monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
        monkeypatch.setenv("HOME", "/home/user")
        assert state.root_folder() == Path("/home/user/.local/state/vgpurun")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_modes_do_not_depend_on_the_umask(umask: int, root_folder: Path) -> None:
    before = os.umask(umask)
    try:
        folder = make()
    finally:
        os.umask(before)
    assert [mode(path) for path in (root_folder, root_folder / "containers", folder.path)] == [0o755] * 3
    assert mode(folder.path / "etc") == 0o755
    assert mode(folder.path / "run") == 0o700, "whoever could open the usage file could lock its slots"
    assert mode(folder.path / "run" / "usage") == 0o666, "in a container, where it is mounted"
    assert mode(folder.path / "lock") == mode(folder.path / "changing") == 0o600
    assert (folder.path / "run" / "usage").read_bytes() == bytes(sizeof(abi.Usage))
    assert mode(folder.path / "etc/limits") == 0o644
    assert (folder.path / "etc/ld.so.preload").read_bytes() == b"library\n"
    assert owner_of(folder.path) == {"engine": "engine"}


def test_names_never_clash() -> None:
    assert make(name="same").path != make(name="same").path


def test_a_folder_that_cannot_be_made_is_one_error_and_leaves_nothing(root_folder: Path) -> None:
    root_folder.write_text("a file in its place")
    with pytest.raises(StateError, match="VGPURUN_STATE_DIR"):
        make()


def test_a_folder_that_cannot_be_filled_is_removed() -> None:
    path = state.new_folder_path()
    with pytest.raises(StateError):
        StateFolder.make(path, {"no/such/folder": b""}, {})
    assert not path.exists()


def test_a_folder_in_use_is_not_swept() -> None:
    local, making = make(engine=None), make()
    state.sweep(lambda: ("engine", set()))
    assert local.path.exists()
    assert making.path.exists()


def test_a_folder_whose_process_has_ended_is_swept_without_an_engine() -> None:
    local, container = make(engine=None), make()
    for folder in (local, container):
        folder.close()
    state.sweep()
    assert not local.path.exists()
    assert container.path.exists()


def test_a_process_that_inherited_the_lock_keeps_the_folder() -> None:
    local = make(engine=None)
    inherited = os.dup(local.lock)
    local.close()
    state.sweep()
    assert local.path.exists()
    assert state.is_held(local.path)
    os.close(inherited)
    state.sweep()
    assert not local.path.exists()


def test_only_the_folders_of_this_engines_lost_containers_are_swept() -> None:
    lost, kept, elsewhere = make(), make(), make(engine="another")
    for folder in (lost, kept, elsewhere):
        folder.close()
    state.sweep(lambda: ("engine", {str(kept.path)}))
    assert [folder.path.exists() for folder in (lost, kept, elsewhere)] == [False, True, True]


def test_the_engine_is_not_asked_without_need() -> None:
    make(engine=None).close()
    state.sweep(lambda: pytest.fail("asked"))


def test_a_folder_that_is_swept_before_its_maker_has_locked_it_is_made_anew(
    root_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remains of a launch that was killed at its first step look the same, and go at once."""
    lock_in_time, swept = state.lock_in_time, []

    def sweep_before(*arguments: Any) -> bool:
        monkeypatch.setattr(state, "lock_in_time", lock_in_time)
        swept.extend(state.sweep())
        return lock_in_time(*arguments)

    monkeypatch.setattr(state, "lock_in_time", sweep_before)
    folder = make(engine=None)
    assert [path for path, _ in swept] == [folder.path]
    state.sweep()
    assert owner_of(folder.path) == {"engine": None}, "it is held now"


def test_a_folder_of_a_container_that_was_made_after_the_engines_answer_is_not_swept(
    root_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was free and without an owner at first, and has both and a container when it is to go."""
    path = root_folder / "containers" / "new"
    path.mkdir(parents=True)
    make().close()  # its container is gone

    def answer() -> tuple[str, set[str]]:
        (path / "lock").unlink(missing_ok=True)
        path.rmdir()
        StateFolder.make(path, FILES, {"engine": "engine"}).close()
        return "engine", set()

    assert len(state.sweep(answer)) == 1
    assert owner_of(path) == {"engine": "engine"}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make_owner", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_an_owner_file_is_read_only_where_it_is_a_file(make_owner: Callable[[Path], None], tmp_path: Path) -> None:
    """The folder may be another user's, whose launches would stop everybody's."""
    make_owner(tmp_path / "owner")
    assert state.read_owner(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"[" * 200_000, b'{"user": ' + b"9" * 100_000 + b"}", b"\xff"])
def test_an_owner_file_that_makes_no_sense_says_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "owner").write_bytes(content)
    assert state.read_owner(tmp_path) is None


def test_of_a_giant_owner_file_no_more_is_read_than_fits(tmp_path: Path) -> None:
    (tmp_path / "owner").touch()
    os.truncate(tmp_path / "owner", 1 << 40)
    assert state.read_owner(tmp_path) is None


@pytest.mark.parametrize("moment", ["1" + "0" * 400, "Infinity", "NaN", "-1", '"soon"', "1e300"])
def test_a_moment_that_cannot_be_is_none(moment: str, tmp_path: Path) -> None:
    (tmp_path / "owner").write_text(f'{{"ends_s": {moment}}}')
    assert state.ends_s(state.read_owner(tmp_path) or {}) is None


def test_an_end_is_counted_by_the_boot_clock() -> None:
    """A clock that is set, by hours, by whomever, ends nothing before its time, and keeps nothing."""
    owner = state.end_after(100.0)
    assert 99 < (state.ends_s(owner) or 0) - boot_s() <= 100
    for jump_s in (-7200.0, 7200.0):
        set_since = {**owner, "ends_s": float(str(owner["ends_s"])) + jump_s}  # simulates a clock that was set by that
        assert state.ends_s(set_since) == state.ends_s(owner)
        other_boot = {**set_since, "boot": "another"}
        assert abs((state.ends_s(other_boot) or 0) - boot_s() - 100 - jump_s) < 2, "nothing else is left to go by"
    before = {"ends_s": time.time() + 50}  # an older version's
    assert abs((state.ends_s(before) or 0) - boot_s() - 50) < 2


def test_a_link_in_place_of_what_is_being_written_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    with pytest.raises(OSError, match="symbolic"), atomic_file(tmp_path / "file") as made:  # noqa: PT012
        made.write_text("content")
        made.unlink()
        made.symlink_to(secret)
    assert secret.stat().st_mode & 0o777 == 0o600 and os.listdir(tmp_path) == ["secret"]


def test_a_command_of_many_lines_is_shown_in_one() -> None:
    owner = {"pid": 7, "user": "a\x07", "command": ["bash", "-c", "echo\n  \x1b[31m"], "quota": "[]"}
    with closing(StateFolder.make(state.new_folder_path(), FILES, owner)):
        (found,) = local_processes()
    assert (found.what, found.user) == ("bash -c echo \ufffd[31m", "a\ufffd")


def test_a_process_that_closed_the_lock_keeps_the_folder_while_it_uses_a_gpu() -> None:
    """Daemons close it. The kernel knows of the process by the lock on its slot of the usage file."""
    local = make(engine=None)
    with open(local.path / "run" / "usage", "r+b") as usage:
        slot = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET, 1, 0)
        fcntl.fcntl(usage, fcntl.F_OFD_SETLK, slot)
        local.close()
        state.sweep()
        assert local.path.exists()
    state.sweep()
    assert not local.path.exists()


@needs_two_users
def test_state_is_kept_by_a_path_without_links(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others follow none that a user has put into folders of his own, such as ~/.local."""
    target, link = public / "state", public / "link"
    link.symlink_to(target)
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(link))
    assert state.root_folder() == state.host_root() == link, "the administrator's, which all follow"
    with as_second_user():
        assert state.root_folder() == state.host_root() == target
        monkeypatch.delenv("VGPURUN_STATE_DIR")
        monkeypatch.setenv("XDG_STATE_HOME", str(link))
        assert state.root_folder() == target / "vgpurun"


def test_a_folder_that_a_container_has_by_a_link_is_not_swept(root_folder: Path) -> None:
    made = make()
    made.close()
    link = root_folder.with_name("link")
    link.symlink_to(root_folder)
    named = str(link / made.path.relative_to(root_folder))
    assert state.sweep(lambda: ("engine", {named})) == [] and made.path.exists()
    assert state.sweep(lambda: ("engine", {named + "1"})) and not made.path.exists()


def test_sweeping_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("content")
    folder = make(engine=None)
    (folder.path / "run" / "link").symlink_to(precious)
    (folder.path.parent / "linked").symlink_to(precious)
    folder.close()
    state.sweep()
    assert not folder.path.exists()
    assert (precious / "file").exists()


@needs_two_users
def test_a_lock_dir_that_another_user_has_closed(public: Path) -> None:
    with as_second_user(), pytest.raises(StateError, match="chmod 1777"):
        state.make_lock_dir(public)


@needs_two_users
@pytest.mark.parametrize(
    "put", [Path.touch, lambda path: path.symlink_to("/etc"), os.mkfifo], ids=["file", "link", "pipe"]
)
def test_root_removes_what_another_user_puts_in_the_place_of_the_lock_dir(
    public: Path, put: Callable[[Path], object]
) -> None:
    public.chmod(0o1777)
    path = public / "locks"
    with as_second_user():
        put(path)
        with pytest.raises(StateError, match="not a folder"):
            state.make_lock_dir(path)
    state.make_lock_dir(path)
    assert mode(path) == 0o1777 and path.lstat().st_uid == 0


@needs_two_users
def test_root_takes_a_lock_dir_over_with_its_access_lists(public: Path) -> None:
    """Its first owner may have kept single users out by them, whatever the mode is afterwards."""
    public.chmod(0o1777)
    path = public / "locks"
    entries = [(0x01, 7, -1), (0x02, 0, 4321), (0x04, 7, -1), (0x10, 7, -1), (0x20, 7, -1)]
    shuts_out = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)
    with as_second_user():
        path.mkdir()
        for kind in ("access", "default"):
            os.setxattr(path, f"system.posix_acl_{kind}", shuts_out)
    state.make_lock_dir(path)
    assert mode(path) == 0o1777 and not [name for name in os.listxattr(path) if "acl" in name]


def test_lock_dir(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    state.make_lock_dir(path)
    assert mode(path) == 0o1777
    state.make_lock_dir(path)
    path.chmod(0o755)
    state.make_lock_dir(path)
    assert mode(path) == 0o1777
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(StateError, match="not a folder"):
        state.make_lock_dir(tmp_path / "link")
