"""Files that others write too: how they are opened without trust, and whether a live process has a slot of one.

Nothing here blocks or follows a link, whatever has been put in the place of such a file.
"""

import fcntl
import os
import stat
import struct
from pathlib import Path

from vgpurun import abi
from vgpurun.util.nofollow import open_nofollow

# struct flock of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhxxxxqqixxxx")


def has_live_processes(path: Path) -> bool:
    """Ask whether any process counts in a usage file; yes where this user may not look. Raises nothing."""
    try:
        file = open_regular(path)
    except PermissionError:
        return True
    except OSError:
        return False
    if file is None:
        return False
    try:
        return is_live(file, 0, abi.MAX_PROCESSES)
    except OSError:
        return True
    finally:
        os.close(file)


def read_regular(path: Path, most_bytes: int) -> bytes | None:
    """Return the beginning of a file that anybody may have put there, or None when it is none. Raises OSError."""
    file = open_regular(path)
    if file is None:
        return None
    try:
        return os.pread(file, min(most_bytes, os.fstat(file).st_size), 0)  # none of kmsg, whose size is 0
    finally:
        os.close(file)


def open_regular(path: Path) -> int | None:
    """Open for reading if it is a regular file. O_PATH has no effect on what is there, were it a device or a pipe.

    Raises OSError, also at once where its owner has a lease of it, which would make us wait for three quarters of a
    minute. A file of /proc is regular too, and one like kmsg makes its readers wait: O_NONBLOCK is for both.
    """
    place = open_nofollow(path, os.O_PATH)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)


def is_live(file: int, slot: int, count: int = 1) -> bool:
    """Ask the kernel whether a process holds the lock of this slot, or of one of so many from there."""
    return is_locked(file, abi.SLOT_LOCK_OFFSET + slot, count)


def is_locked(file: int, at: int, count: int = 1) -> bool:
    """Ask the kernel whether anybody has a lock on one of these bytes, be it shared. Raises OSError."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, count, 0)
    lock_type = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, question))[0]
    return bool(lock_type != fcntl.F_UNLCK)
