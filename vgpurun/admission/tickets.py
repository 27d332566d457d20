"""The tickets of `--wait`: one for each waiting launch, in the folder of the admission lock.

    <folder>/wait-<time>-<token>    the UUIDs of the GPUs that would do, one a line, then `# USER: OPTIONS` for people;
                                    the waiting launch holds its flock

The first name has its turn; names begin with the time since the host's start. A launch that waits for other GPUs, or
for the end of something of its own user's, does not count. Nothing in a ticket is trusted: one that nobody holds, or
that its holder has not touched for a while (a stopped process), does not hold the others up.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.admission.lock import QUEUE_DIR, open_shared
from vgpurun.errors import StateError
from vgpurun.util.printable import printable
from vgpurun.util.users import current_user, name_of

_PREFIX = "wait-"
_UNREADY = "new-"
_FRESH_S = 15.0  # a waiting launch touches its ticket many times in this time
_MAX_BYTES = 4096


class Waiting(NamedTuple):
    """A launch that waits: whose it is, for how long it has waited, for which GPUs, and what it asks for."""

    user: str
    waited_s: float
    uuids: frozenset[str]
    asked: str


class Ticket:
    """A place in the queue. Its file is gone when it is closed, and counts no more when its process is."""

    def __init__(self, path: Path, file: int, remark: str = "") -> None:
        self.path = path
        self._file = file
        self._remark = remark

    @classmethod
    def take(cls, uuids: Sequence[str], folder: Path = QUEUE_DIR, asked: str = "") -> "Ticket":
        """Take the last place. Raises StateError."""
        sweep(folder)
        token = os.urandom(4).hex()
        name = f"{_PREFIX}{time.clock_gettime_ns(time.CLOCK_BOOTTIME):020d}-{token}"
        unready = folder / f"{_UNREADY}{token}"
        remark = f"# {current_user()}: {asked}"
        try:
            file = open_shared(unready)
            if file is None:
                raise StateError(f"{unready} is in the way; remove it")
            unready.write_text("\n".join([*uuids, remark]))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only ill will is so fast as to have it
            unready.rename(folder / name)  # nobody sees it before it is held
        except OSError as error:
            raise StateError(f"cannot wait in {folder}: {error.strerror}; leave out --wait") from None
        return cls(folder / name, file, remark)

    def wait_for(self, uuids: Sequence[str]) -> None:
        """Wait for these GPUs from now on, in the same place."""
        with suppress(OSError):
            self.path.write_text("\n".join([*uuids, self._remark]))

    def touch(self) -> None:
        """Show that somebody waits here."""
        with suppress(OSError):
            os.utime(self._file)

    def close(self) -> None:
        """Leave the queue."""
        if self._file >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def sweep(folder: Path = QUEUE_DIR) -> None:
    """Remove what killed launches have left of the queue, as far as this user may."""
    ahead([], None, folder)
    for unready in folder.glob(f"{_UNREADY}*"):
        with suppress(OSError):
            if time.time() - unready.lstat().st_mtime > _FRESH_S:
                unready.unlink()


def ahead(uuids: Sequence[str], ticket: Ticket | None = None, folder: Path = QUEUE_DIR) -> int:
    """Return how many wait for one of these GPUs before this ticket; without a ticket, how many wait at all."""
    last = None if ticket is None else ticket.path.name
    return sum(1 for each in queue(folder, last) if not each.uuids.isdisjoint(uuids))


def queue(folder: Path = QUEUE_DIR, before: str | None = None) -> list[Waiting]:
    """Return all that wait, the first one first; those before the ticket of a name, where one is given."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(_PREFIX))
    except OSError:
        return []
    found = (_read(folder / name) for name in names if before is None or name < before)
    return [each for each in found if each is not None]


def _read(path: Path) -> Waiting | None:
    """Return the launch that waits there; None where it is gone, or does not touch its ticket any more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _is_held(file):
            status = os.fstat(file)
            lines = os.pread(file, _MAX_BYTES, 0).decode(errors="replace").splitlines()
            is_fresh = abs(time.time() - status.st_mtime) < _FRESH_S
            return _waiting(path.name, status.st_uid, lines) if is_fresh else None
    except OSError:  # a folder, a pipe
        return None
    finally:
        os.close(file)
    with suppress(OSError):
        path.unlink()  # its process is gone; another user's stays and does not count
    return None


def _waiting(name: str, uid: int, lines: Sequence[str]) -> Waiting:
    """Under sudo a ticket is root's: then its own word counts for the user."""
    remark = next((line for line in lines if line.startswith("# ")), "# : ")
    user, _, asked = remark[2:].partition(": ")
    since_ns = name.removeprefix(_PREFIX).partition("-")[0]
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return Waiting(
        user=printable(user) if uid == 0 and user else name_of(uid),
        waited_s=max(0.0, (now_ns - int(since_ns)) / 1e9) if since_ns.isdecimal() else 0.0,
        uuids=frozenset(line for line in lines if not line.startswith("#")),
        asked=printable(asked),
    )


def _is_held(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
