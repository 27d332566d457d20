"""Locks that the kernel drops with their process, and that nobody waits for without end."""

import fcntl
import os
import time
from pathlib import Path

_RETRY_S = 0.02


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
    """Whether what was opened is what is there now: who waits for a lock may get that of something removed."""
    try:
        there = path.lstat()
    except OSError:
        return False
    return os.path.samestat(os.fstat(file), there)
