"""Paths on which another user may have put a link."""

import errno
import os
from pathlib import Path

import pytest

from support.second_user import UID, needs_two_users
from vgpurun.util.nofollow import open_nofollow, opened_folder, replace_nofollow


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
    (state / "further").symlink_to("../link")
    assert read(state.parent / "link" / "further" / "etc" / "limits") == b"mine"


def test_links_in_a_ring_end(state: Path) -> None:
    (state / "ring").symlink_to("ring")
    with pytest.raises(OSError, match="symbolic link") as caught:
        read(state / "ring" / "etc" / "limits")
    assert caught.value.errno == errno.ELOOP


def test_neither_a_file_nor_its_folder_is_a_link(state: Path) -> None:
    """Root in a container that mounts a folder of ours can make one there."""
    (state / "etc" / "link").symlink_to("limits")
    (state / "link").symlink_to("etc")
    with pytest.raises(OSError, match="symbolic link"):
        read(state / "etc" / "link")
    with pytest.raises(NotADirectoryError):
        read(state / "link" / "limits")
    with pytest.raises(NotADirectoryError):
        replace_nofollow(state / "link" / "limits", b"other")
    replace_nofollow(state / "etc" / "link", b"other")
    assert (read(state / "etc" / "link"), read(state / "etc" / "limits")) == (b"other", b"mine")


@pytest.fixture
def link(state: Path, tmp_path: Path) -> Path:
    """A link to the state folder, in a folder that others may have put it into."""
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / "theirs" / "link").symlink_to(state)
    return tmp_path / "theirs" / "link"


@needs_two_users
def test_a_link_in_another_users_folder_is_refused(link: Path) -> None:
    os.chown(link.parent, UID, UID)
    with pytest.raises(OSError, match="another user") as caught:
        read(link / "etc" / "limits")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(OSError, match="another user"):
        replace_nofollow(link / "etc" / "limits", b"other")


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_a_link_where_others_may_write_is_refused(link: Path, mode: int) -> None:
    link.parent.chmod(mode)
    with pytest.raises(OSError, match="another user"):
        read(link / "etc" / "limits")


@needs_two_users
def test_what_lies_in_another_users_folder_is_opened(state: Path) -> None:
    os.chown(state, UID, UID)
    assert read(state / "etc" / "limits") == b"mine"


@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_a_file_that_is_replaced_is_for_all_to_read(state: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        replace_nofollow(state / "etc" / "limits", b"new")
    finally:
        os.umask(before)
    assert read(state / "etc" / "limits") == b"new"
    assert (state / "etc" / "limits").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in (state / "etc").iterdir()] == ["limits"]


def test_no_file_stays_open_and_none_half_made(state: Path) -> None:
    before = os.listdir("/proc/self/fd")
    read(state / "etc" / "limits")
    (state / "etc" / "folder").mkdir()
    for path in (state / "none" / "limits", state / "etc" / "limits" / "deeper"):
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            read(path)
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            replace_nofollow(path, b"")
    with pytest.raises(IsADirectoryError) as caught:
        replace_nofollow(state / "etc" / "folder", b"")
    assert caught.value.filename == str(state / "etc" / "folder")
    assert sorted(path.name for path in (state / "etc").iterdir()) == ["folder", "limits"]
    assert os.listdir("/proc/self/fd") == before
