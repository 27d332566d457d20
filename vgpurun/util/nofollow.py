"""Opens files by paths on which other users may write, without following the symbolic links that they may put there.

A path is walked folder by folder, each opened in the one before, so nothing on it can be exchanged meanwhile. A link is
followed only in a folder that nobody but root and this user can write: an administrator's, or one of our own. Neither
the file nor its folder may be a link at all, since root in a container that mounts a folder of ours can write there.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # the kernel's own limit for a path


def open_nofollow(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file. Raises OSError, as for a link on the way that another user may have put there.

    With O_PATH a link in the place of the file is opened itself, as by os.open().
    """
    with opened_folder(path.parent) as folder:
        try:
            return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        except OSError as error:
            error.filename = str(path)
            raise


def replace_nofollow(path: Path, content: bytes, is_flushed: bool = True) -> None:
    """Put a file that all may read in the place of what is there, whole at any moment. Raises OSError.

    `is_flushed`: it is on the disk before it takes the place.
    """
    made = f".{path.name}.{os.urandom(4).hex()}"
    with opened_folder(path.parent) as folder:
        try:
            file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            with os.fdopen(file, "wb", buffering=0) as opened:
                opened.write(content)
                os.fchmod(file, 0o644)
                if is_flushed:
                    os.fsync(file)
            os.replace(made, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            error.filename, error.filename2 = str(path), None
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(made, dir_fd=folder)


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Yield a folder for `dir_fd`. Raises OSError as open_nofollow()."""
    try:
        folder = _open(path if path.is_absolute() else Path.cwd() / path)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        yield folder
    finally:
        os.close(folder)


def _open(path: Path) -> int:
    """Walk only where a link is on the way: a folder that the kernel has at this very path was reached by none.

    A launch that looks at 300 others would take 7 ms longer.
    """
    folder = os.open(path, _FOLDER)
    if os.readlink(f"/proc/self/fd/{folder}") == str(path):  # noqa: PTH115
        return folder
    os.close(folder)
    around = _walk(str(path.parent))
    try:
        return os.open(path.name or ".", _FOLDER, dir_fd=around)
    finally:
        os.close(around)


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
