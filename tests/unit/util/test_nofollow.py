"""Paths on which another user may have put a link."""

import errno
import os
from pathlib import Path

import pytest

from vgpurun.util.nofollow import open_nofollow, opened_folder

STRANGER = 1234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give folders to another user")


def read(path: Path) -> bytes:
    file = open_nofollow(path, os.O_RDONLY)
    try:
        return os.read(file, 100)
    finally:
        os.close(file)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with a file two folders further down."""
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state" / "etc").mkdir(mode=0o755)
    (tmp_path / "state" / "etc" / "limits").write_bytes(b"mine")
    return tmp_path / "state"


def test_a_file_is_opened_by_its_path(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(state / "etc" / "limits") == b"mine"
    assert read(state / "etc" / ".." / "etc" / "limits") == b"mine"
    monkeypatch.chdir(state)
    assert read(Path("etc/limits")) == b"mine"
    with pytest.raises(FileNotFoundError) as caught:
        read(state / "etc" / "usage")
    assert caught.value.filename == str(state / "etc" / "usage")
    with pytest.raises(NotADirectoryError):
        read(state / "etc" / "limits" / "usage")


def test_a_file_is_made_in_the_folder(state: Path) -> None:
    os.close(open_nofollow(state / "etc" / "made", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    assert (state / "etc" / "made").stat().st_mode & 0o777 == 0o640
    with opened_folder(state / "etc") as folder:
        assert sorted(os.listdir(f"/proc/self/fd/{folder}")) == ["limits", "made"]


@pytest.mark.parametrize("is_absolute", [True, False])
def test_links_of_this_users_own_are_followed(state: Path, is_absolute: bool) -> None:
    (state.parent / "link").symlink_to(state if is_absolute else "state")
    (state / "further").symlink_to("../link/etc")
    assert read(state.parent / "link" / "further" / "limits") == b"mine"


def test_links_in_a_ring_end(state: Path) -> None:
    (state / "ring").symlink_to("ring")
    with pytest.raises(OSError, match="symbolic link") as caught:
        read(state / "ring" / "limits")
    assert caught.value.errno == errno.ELOOP


def test_a_file_that_is_a_link_itself_is_never_opened(state: Path) -> None:
    (state / "etc" / "link").symlink_to("limits")
    with pytest.raises(OSError, match="symbolic link"):
        read(state / "etc" / "link")


@needs_root
def test_a_link_in_another_users_folder_is_refused(state: Path, tmp_path: Path) -> None:
    """Be the link root's: root in a container that mounts the folder can make such ones."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "etc").symlink_to(state / "etc")
    os.chown(theirs, STRANGER, STRANGER)
    with pytest.raises(OSError, match="another user") as caught:
        read(theirs / "etc" / "limits")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(OSError, match="another user"), opened_folder(theirs / "etc"):
        pass


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_a_link_where_others_may_write_is_refused(state: Path, tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (shared / "etc").symlink_to(state / "etc")
    with pytest.raises(OSError, match="another user"):
        read(shared / "etc" / "limits")


@needs_root
def test_what_lies_in_another_users_folder_is_opened(state: Path) -> None:
    os.chown(state, STRANGER, STRANGER)
    assert read(state / "etc" / "limits") == b"mine"


def test_no_file_stays_open(state: Path) -> None:
    before = os.listdir("/proc/self/fd")
    read(state / "etc" / "limits")
    for path in (state / "none" / "limits", state / "etc" / "limits" / "deeper"):
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            read(path)
    assert os.listdir("/proc/self/fd") == before
