"""Lets one launch of this host at a time look at the GPUs and take a share of them, across all users.

The lock is a flock on a file that all users share, so a killed launch lets go of it. Nothing in the shared folder is
trusted: a link, a pipe or a file that is closed to this user is not a lock, and nobody can hold others up for more than
PATIENCE_S, nor several one after the other for longer than MOST_S.

The lock keeps order, so that launches at the same time do not see, and refuse, each other. That nothing is reserved
twice does not depend on it: a launch that has taken its share looks again (controller.py), with the lock or without.

The folder is root's, and sticky: nobody can replace or remove another user's files in it. Where root has not run
vgpurun since the boot, and so no guard, launches meet in /tmp itself, which is such a folder as well. It is not the one
that running containers share (abi.LOCK_DIR): they have no part in this.
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vgpurun.errors import StateError
from vgpurun.storage import state
from vgpurun.util.locking import holder_of, is_at, show_holder

RUN_FOLDER = Path("/run/vgpurun")
_WITHOUT_ROOT = Path("/tmp")
_LOCK = "vgpurun-lock"
PATIENCE_S = 30.0
MOST_S = 300.0
_RETRY_S = 0.02


def shared_folder() -> Path:
    """Return where the launches of all users meet. Root makes it."""
    if _is_roots_and_open(RUN_FOLDER):
        return RUN_FOLDER
    if os.geteuid() == 0:
        with suppress(StateError):  # root in a user namespace cannot
            state.make_lock_dir(RUN_FOLDER)
            return RUN_FOLDER
    return _WITHOUT_ROOT.resolve()  # a link of the administrator's, maybe


def _is_roots_and_open(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_open = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o1777
    return is_open and status.st_uid == 0


@contextmanager
def admission_lock(
    warn: Callable[[str], None], folder: Path | None = None, patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Hold the lock, or say that this launch goes ahead without it. `folder`: None is the shared one."""
    path = (folder or shared_folder()) / _LOCK
    file, reason = _acquire(path, patience_s)
    if file is None:
        warn(f"{path} {reason}: this launch goes ahead without it")
    try:
        yield
    finally:
        if file is not None:
            os.close(file)


def _acquire(path: Path, patience_s: float) -> tuple[int | None, str]:
    """Return the locked file, or None and why there is none. Patience is for each holder that can be told apart."""
    began = time.monotonic()
    holder, deadline = "", began + patience_s
    while True:
        try:
            file = _open(path)
        except OSError as error:
            return None, f"is not a lock ({error.strerror}; remove it)"
        if file is None:
            return None, "is not a lock (not a plain file; remove it)"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(file, path):
                return file, ""
            now_holds = holder  # removed while we waited for it: there is a new one
        except BlockingIOError:
            now_holds = holder_of(file)
        os.close(file)
        if now_holds != holder:
            holder, deadline = now_holds, min(began + MOST_S, time.monotonic() + patience_s)
        if time.monotonic() > deadline:
            waited_s = time.monotonic() - began
            return None, f"has not been free for {waited_s:.0f} s, and is held by {show_holder(holder)}"
        time.sleep(_RETRY_S)


def _open(path: Path) -> int | None:
    """Open a file of the shared folder, made first if need be; None if it is no plain file. Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(file, 0o644)  # whatever the umask is: to read is enough for a flock
    except FileExistsError:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None
