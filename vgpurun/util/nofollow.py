"""Opens files by paths on which other users may write, without following the symbolic links that they may put there.

A path is walked folder by folder, each opened in the one before, so nothing on it can be exchanged meanwhile. A link is
followed only in a folder that nobody but root and this user can write: an administrator's, or one of our own.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as many as the kernel follows on a path


def open_nofollow(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file, which is no link itself. Raises OSError, with ELOOP for a link that another user may have put there.

    With O_PATH a link itself is opened, as by os.open().
    """
    with opened_folder(path.parent) as folder:
        try:
            return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        except OSError as error:
            error.filename = str(path)
            raise


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Yield a folder for `dir_fd`; its last component may be a link as any other. Raises OSError as open_nofollow()."""
    try:
        folder = _walk(os.path.join(os.getcwd(), path))  # noqa: PTH109, PTH118
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        yield folder
    finally:
        os.close(folder)


def _walk(path: str) -> int:
    to_come = path.split("/")[::-1]
    links = 0
    place = os.open("/", _FOLDER)
    try:
        while to_come:
            name = to_come.pop() or "."
            try:
                inner = os.open(name, _FOLDER, dir_fd=place)
            except NotADirectoryError:
                target = _link_of_ours(name, place)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                to_come += target.split("/")[::-1]
                inner = os.open("/" if target.startswith("/") else ".", _FOLDER, dir_fd=place)
            os.close(place)
            place = inner
    except BaseException:
        os.close(place)
        raise
    return place


def _link_of_ours(name: str, folder: int) -> str:
    """Return where a link leads that only root or this user can have put into a folder. Raises OSError."""
    try:
        target = os.readlink(name, dir_fd=folder)
    except OSError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    status = os.fstat(folder)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.ELOOP, "a symbolic link that another user may have put there")
    return target
