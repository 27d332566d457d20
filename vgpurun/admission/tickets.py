"""The tickets of `--wait`: one for each waiting launch, in the folder of the admission lock.

    <folder>/vgpurun-wait-<time>-<token>    the process that waits (PID, start time, boot); the UUIDs of the GPUs that
                                            would do, one a line; then `# USER: OPTIONS` for people

The first name has its turn; names begin with the time since the host's start. A launch that waits for other GPUs, or
for the end of something of its own user's, does not count. Nobody can write, replace or remove the ticket of another
user in this folder, and nothing is read of a lock, which anybody could take. A ticket counts as long as the process
that it names is its owner's and lives, had started by the time that it claims, and touches it: a stopped one does not
hold the others up. Of each user's the first 256 are read: the others' turns come after those, and nobody can make the
launches of others read so many that they forget to touch their own.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.admission.lock import shared_folder
from vgpurun.errors import StateError
from vgpurun.storage.shared_file import open_regular
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import ProcessIdentity, identify
from vgpurun.util.users import current_user, name_of

_PREFIX = "vgpurun-wait-"
_NAME = re.compile(_PREFIX + "([0-9]{20})-")  # all of one length: names have the order of the times
_UNREADY = "vgpurun-new-"
_FRESH_S = 15.0  # a waiting launch touches its ticket many times in this time
_MAX_BYTES = 4096
_MOST_OF_A_USER = 256
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Waiting(NamedTuple):
    """A launch that waits: whose it is, for how long it has waited, for which GPUs, and what it asks for."""

    user: str
    waited_s: float
    uuids: frozenset[str]
    asked: str


class Ticket:
    """A place in the queue. Its file is gone when it is closed, and counts no more when its process is."""

    def __init__(self, path: Path, file: int, process: ProcessIdentity, remark: str) -> None:
        self.path = path
        self._file = file
        self._process = " ".join(map(str, process))
        self._remark = remark

    @classmethod
    def take(cls, uuids: Sequence[str], folder: Path | None = None, asked: str = "") -> "Ticket":
        """Take the last place. `folder`: None is the shared one. Raises StateError."""
        folder = folder or shared_folder()
        process = identify(os.getpid())
        if process is None:
            raise StateError("cannot wait where /proc does not show this process; leave out --wait")
        sweep(folder)
        token = os.urandom(4).hex()
        name = f"{_PREFIX}{time.clock_gettime_ns(time.CLOCK_BOOTTIME):020d}-{token}"
        unready = folder / f"{_UNREADY}{token}"
        try:
            file = os.open(unready, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            ticket = cls(unready, file, process, f"# {current_user()}: {asked}")
            try:
                os.fchmod(file, 0o644)  # whatever the umask is
                ticket._write(uuids)
                unready.rename(folder / name)  # nobody sees it before it is whole
            except BaseException:
                ticket.close()
                raise
        except OSError as error:
            raise StateError(f"cannot wait in {folder}: {error.strerror}; leave out --wait") from None
        ticket.path = folder / name
        return ticket

    def wait_for(self, uuids: Sequence[str]) -> None:
        """Wait for these GPUs from now on, in the same place."""
        with suppress(OSError):  # waits for those before
            self._write(uuids)

    def _write(self, uuids: Sequence[str]) -> None:
        """Write all of it at once, for whoever reads it meanwhile. Raises OSError."""
        before = os.fstat(self._file).st_size
        text = "\n".join([self._process, *uuids, self._remark, ""])
        os.pwrite(self._file, text.encode().ljust(before, b"\n"), 0)

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


def sweep(folder: Path | None = None) -> None:
    """Remove what killed launches have left of the queue, as far as this user may."""
    folder = folder or shared_folder()
    ahead([], None, folder)
    for unready in folder.glob(f"{_UNREADY}*"):
        with suppress(OSError):
            if time.time() - unready.lstat().st_mtime > _FRESH_S:
                unready.unlink()


def ahead(uuids: Sequence[str], ticket: Ticket | None = None, folder: Path | None = None) -> int:
    """Return how many wait for one of these GPUs before this ticket; without a ticket, how many wait at all."""
    last = None if ticket is None else ticket.path.name
    return sum(1 for each in queue(folder, last) if not each.uuids.isdisjoint(uuids))


def queue(folder: Path | None = None, before: str | None = None) -> list[Waiting]:
    """Return all that wait, the first one first; those before the ticket of a name, where one is given."""
    folder = folder or shared_folder()
    try:
        names = sorted(entry.name for entry in folder.iterdir() if _NAME.match(entry.name))
    except OSError:
        return []
    found = map(_read, _first_of_each_user(folder / name for name in names if before is None or name < before))
    return [each for each in found if each is not None]


def _first_of_each_user(paths: Iterable[Path]) -> Iterator[Path]:
    of_user = Counter[int]()
    for path in paths:
        with suppress(OSError):  # already gone
            uid = path.lstat().st_uid
            of_user[uid] += 1
            if of_user[uid] <= _MOST_OF_A_USER:
                yield path


def _read(path: Path) -> Waiting | None:
    """Return the launch that waits there; None where it is gone, or does not touch its ticket any more."""
    try:
        file = open_regular(path)
        if file is None:
            return None
        try:
            status = os.fstat(file)
            lines = os.pread(file, _MAX_BYTES, 0).decode(errors="replace").split("\n")
        finally:
            os.close(file)
    except OSError:
        return None
    process = _process_in(lines)
    if process is None or not process.is_alive(status.st_uid):
        with suppress(OSError):
            path.unlink()  # another user's stays, and does not count
        return None
    named = _NAME.match(path.name)
    is_fresh = abs(time.time() - status.st_mtime) < _FRESH_S
    if named is None or not is_fresh or int(named[1]) < process.started_ticks * _TICK_NS:
        return None
    return _waiting(int(named[1]), status.st_uid, lines[1:])


def _process_in(lines: Sequence[str]) -> ProcessIdentity | None:
    with suppress(ValueError):
        pid, started_ticks, boot_id = lines[0].split(" ")
        return ProcessIdentity(int(pid), int(started_ticks), boot_id)
    return None


def _waiting(since_ns: int, uid: int, lines: Sequence[str]) -> Waiting:
    """Under sudo a ticket is root's: then its own word counts for the user."""
    remark = next((line for line in lines if line.startswith("# ")), "# : ")
    user, _, asked = remark[2:].partition(": ")
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return Waiting(
        user=printable(user) if uid == 0 and user else name_of(uid),
        waited_s=max(0.0, (now_ns - since_ns) / 1e9),
        uuids=frozenset(printable(line) for line in lines if line and not line.startswith("#")),
        asked=printable(asked),
    )
