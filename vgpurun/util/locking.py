"""Locks that the kernel drops with their process, and that nobody waits for without end.

Whoever can open a file for reading can lock it, and hold up all that wait. So each lock is in a file that only its
owner, and root, can open.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vgpurun.util import users

_RETRY_S = 0.02


@contextmanager
def alone_in(
    folder: Path,
    patience_s: float,
    failed: Callable[[str], Exception],
    make: Callable[[Path], object],
    name: str = ".lock",
) -> Iterator[None]:
    """Keep others that do the same out of a folder until this ends: processes, and threads of this one.

    `make` makes the folder where it is missing. The lock is on the file `name` in it. Raises what `failed` returns for
    one line that says what is wrong, also where another has the folder for all of `patience_s`.
    """
    with opened(folder, failed, make, name) as lock:
        if not lock_in_time(lock, fcntl.LOCK_EX, patience_s):
            waited, process = f"{folder / name} has not been free for {patience_s:.0f} s", show_holder(holder_of(lock))
            raise failed(f"{waited}, and is held by {process}; end that, or try again when it has ended")
        yield


@contextmanager
def opened(
    folder: Path, failed: Callable[[str], Exception], make: Callable[[Path], object], name: str
) -> Iterator[int]:
    """Yield the open file that a lock as above is on; what is locked by it is free at the end."""
    path = folder / name
    try:
        make(folder)
        lock = open_lock(path)
    except OSError as error:
        raise failed(f"cannot use {path}: {error.strerror}") from None
    try:
        yield lock
    finally:
        os.close(lock)


def open_lock(path: Path | str, folder: int | None = None, flags: int = os.O_CREAT) -> int:
    """Open a file that locks are on, made first if need be; `folder` is what the path begins at. Raises OSError.

    Only its owner can open it. One that more could is of an older version, and is closed to them.
    """
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600, dir_fd=folder)
    status = os.fstat(file)
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.fchmod(file, 0o600)
    return file


def lock_in_time(file: int, operation: int, patience_s: float) -> bool:
    """Take a flock, `LOCK_SH` or `LOCK_EX`; return whether it was had in time. Raises OSError."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_S)
        else:
            return True


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at the path now: a wait for a lock may end with that of a removed file."""
    try:
        there = path.lstat()
    except OSError:
        return False
    return os.path.samestat(os.fstat(file), there)


def holder_of(file: int) -> str:
    """Return the process that has the flock of a file, as far as the kernel tells; of another PID namespace: empty."""
    inode = os.fstat(file).st_ino
    return next((process for process, locked in _flocks() if locked == inode), "")


def locked_by(pid: int) -> set[int]:
    """Return the inodes that a process has a flock of, as far as the kernel tells."""
    return {inode for process, inode in _flocks() if process == str(pid)}


def _flocks() -> Iterator[tuple[str, int]]:
    """Yield the process and the inode of each flock that is held."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()  # NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END
        if len(words) > 5 and words[1] == "FLOCK":
            yield words[4], int(words[5].rpartition(":")[2])


def show_holder(process: str) -> str:
    """Return in words what holder_of() has returned."""
    try:
        return f"process {int(process)} of user {users.name_of(Path(f'/proc/{process}').stat().st_uid)}"
    except (OSError, ValueError):
        return "a process that cannot be seen from here"
