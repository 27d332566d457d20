"""Which processes hold a state folder: the one that makes it, and those of a local process.

For its owner and root a lock says so, which processes inherit, on a file that nobody else can open. Other users could
hold any lock that they can see: so a record in the owner file names the processes to them, and they ask the kernel.
"""

import fcntl
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vgpurun.util.locking import open_lock
from vgpurun.util.nofollow import opened_folder
from vgpurun.util.process_identity import ProcessIdentity, all_pids, identify, pid_namespace

LOCK = "lock"
RECORD = "holders"  # in the owner file


def open_folder_lock(folder: Path, flags: int = 0) -> int:
    """Open the lock of a state folder. Raises OSError, PermissionError where it is another user's."""
    with opened_folder(folder) as place:
        return open_lock(LOCK, place, flags)


def is_locked(lock: int) -> bool:
    """Ask whether a process has the lock, by a file opened for that. All that ask at once get the same answer."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def record_of(pids: Iterable[int]) -> dict[str, object]:
    """Return what an owner file says of these processes; those that have ended are left out."""
    found = [each for pid in pids if (each := identify(pid)) is not None]
    return {"pid_namespace": pid_namespace(), "processes": [each._asdict() for each in found]}


def is_any_alive(record: object) -> bool:
    """Ask whether a process of a record lives. Raises PermissionError for those of another PID namespace."""
    return any(each.is_alive() for each in processes_in(record))


def processes_in(record: object) -> list[ProcessIdentity]:
    """Return the processes that a record names. Raises PermissionError for those of another PID namespace."""
    if not isinstance(record, Mapping):
        return []
    if record.get("pid_namespace") != pid_namespace():
        raise PermissionError("these processes cannot be seen from here")
    return list(_processes_in(record))


def _processes_in(record: Mapping[str, Any]) -> Iterable[ProcessIdentity]:
    named = record.get("processes")
    for each in named if isinstance(named, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            yield ProcessIdentity(int(each["pid"]), int(each["started_ticks"]), str(each["boot_id"]))


def with_file(status: os.stat_result) -> set[int]:
    """Return the processes that have a file open, as far as this user may look. Raises nothing."""
    return {pid for pid in all_pids() if has_open(Path(f"/proc/{pid}"), status)}


def has_open(process: Path, status: os.stat_result) -> bool:
    """Whether a process of /proc has a file open, as far as this user may look. Raises nothing."""
    with suppress(OSError), os.scandir(process / "fd") as files:
        for file in files:
            with suppress(OSError):
                if os.path.samestat(file.stat(), status):
                    return True
    return False
