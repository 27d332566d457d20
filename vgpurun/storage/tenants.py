"""The folders by which limited programs on one GPU know of each other, in abi.LOCK_DIR.

Each tenant, which is a container, a slice or a local process, has one. A tenant's programs write one file of their
own there, and can only read all others.

    <abi.LOCK_DIR>/<hash>/   0755  the hash is of the state folder's path
                  limits     0644  a copy of the state folder's etc/limits: what the others are to believe of it
                  presence1        when its processes were at work, by themselves: 0644 where they are all of one user,
                                   else 0666, and the mounts of containers keep it from those of others
                  of         0644  the state folder's path

Containers see the folder read-only, and their own presence1 once more (launch/plan.py, cdi/specification.py). Programs
that nobody has started make a program-... of their own.
"""

import errno
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from vgpurun import abi
from vgpurun.errors import StateError
from vgpurun.util import access_list
from vgpurun.util.nofollow import open_nofollow, opened_folder

LIMITS, _OF = "limits", "of"
_PROGRAM = "program-"
_TRIES = 100  # to take a place that somebody else takes again and again
_FORGOTTEN_S = 24 * 3600  # a program that has launched nothing for so long, and may have ended
_KEPT_OF_ANOTHER = 256  # another user's folders, the last written; the library reads them all the time
_KEPT_S = 3600  # and the others, which may be just at a start
_MOST_REMOVED = 1000  # in a sweep, for which a launch waits
_MOST_IN_ONE = 16  # several times what a tenant has
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_lock_dir(path: Path = Path(abi.LOCK_DIR)) -> None:
    """Make the folder by which containers on one GPU know of each other, open to all users. Raises StateError.

    Root takes another user's over, who could put anything in the place of what root makes in there, and removes what
    another user has put in its place.
    """
    try:
        with suppress(FileExistsError):
            path.mkdir()
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) and os.geteuid() == 0 != status.st_uid:
            path.unlink()
            path.mkdir()
            status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and os.geteuid() in (0, status.st_uid):
            with suppress(PermissionError):  # root in a user namespace alone
                _make_open(path)
                return
    except OSError as error:
        raise StateError(f"cannot make {path}: {error.strerror}; make it by hand: mkdir -m 1777 {path}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise StateError(f"{path} is not a folder; remove it, then: mkdir -m 1777 {path}")
    if not status.st_mode & stat.S_IWOTH:
        raise StateError(f"{path} is not open to all users; as its owner or root: chmod 1777 {path}")


def _make_open(path: Path) -> None:
    """Make a folder this user's, and open to all whatever the umask is. Raises OSError."""
    folder = os.open(path, _OPEN_FOLDER)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            os.fchown(folder, os.geteuid(), -1)
        access_list.remove(folder)  # by which whoever made it may still keep others out
        os.fchmod(folder, 0o1777)
    finally:
        os.close(folder)


def folder_of(state_folder: Path) -> Path:
    """Return the folder of the tenant with these limits. Makes nothing."""
    digest = str(_sha2().sha256(os.path.abspath(state_folder).encode()).hexdigest())  # noqa: PTH100
    return Path(abi.LOCK_DIR) / digest[:24]


@cache
def _sha2() -> ModuleType:
    """Return Python's own module, under its names of 3.12 and before, for hashlib would load OpenSSL first."""
    for module in ("_sha2", "_sha256", "hashlib"):
        with suppress(ImportError):
            return import_module(module)
    raise AssertionError("unreachable: hashlib is always there")


def presence_file(state_folder: Path) -> Path:
    """Return the file that the tenant's own processes write."""
    return folder_of(state_folder) / abi.PRESENCE_NAME


def is_there(state_folder: Path) -> bool:
    """Whether a tenant of this user has its folder, and it can be looked at."""
    with suppress(OSError):
        return _is_made(folder_of(state_folder))
    return False


def state_folder_of(place: Path) -> Path | None:
    """Return the state folder of a tenant of this user's, None of another's. Raises OSError."""
    if place.lstat().st_uid != os.geteuid():
        return None
    return Path(os.fsdecode(_read_own(str(place / _OF))))


def make(state_folder: Path, writer: int | None = None) -> None:
    """Make the folder of a tenant if it is not there. `writer` is the user of all its processes, None: any may be.

    Nothing is made for another user's state folder, which could say anything of it. Raises StateError.
    """
    make_lock_dir(Path(abi.LOCK_DIR))
    place = folder_of(state_folder)
    try:
        if state_folder.stat().st_uid != os.geteuid() or _is_made(place):
            return
        contents = {
            LIMITS: ((state_folder / "etc" / "limits").read_bytes(), 0o644),
            _OF: (str(state_folder).encode(), 0o644),
            abi.PRESENCE_NAME: (bytes(abi.PRESENCE_BYTES), 0o666 if writer is None else 0o644),
        }
        half_made = place.with_name(f".{os.urandom(6).hex()}")
        half_made.mkdir()
        try:
            _fill(half_made, contents)
            if writer is not None:
                os.chown(half_made / abi.PRESENCE_NAME, writer, -1)
            _put(half_made, place)
        finally:
            shutil.rmtree(half_made, ignore_errors=True)
    except OSError as error:
        raise StateError(f"cannot make {place}: {error.strerror}; programs on a GPU see each other by it") from None


def _is_made(place: Path) -> bool:
    """Ask whether a folder is a tenant's of this user: another one may have put anything there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        status = place.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():  # nobody else can replace it
            return stat.S_ISREG((place / abi.PRESENCE_NAME).lstat().st_mode)
    return False


def _fill(folder: Path, contents: Mapping[str, tuple[bytes, int]]) -> None:
    """Write files with their modes, all bytes of them: no full disk is met later. Nothing is followed out of there."""
    place = os.open(folder, _OPEN_FOLDER)
    try:
        os.fchmod(place, 0o755)  # another user's is refused
        for name, (content, mode) in contents.items():
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place)
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                os.fchmod(file, mode)
    finally:
        os.close(place)


def _put(half_made: Path, place: Path) -> None:
    """Move a folder to its place, while another process may do the same, or another user try to prevent it.

    Raises OSError.
    """
    for tries_left in reversed(range(_TRIES)):
        _clear(place)
        try:
            half_made.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or not tries_left:
                raise
        if _is_made(place):
            return


def _clear(place: Path) -> None:
    """Remove an obstacle: an older version's folder, or another user's file. Raises OSError."""
    try:
        place.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(place, ignore_errors=True)


def tell(state_folder: Path, limits: bytes) -> None:
    """Tell the other tenants of new limits; nothing happens where they do not know of this one.

    Raises OSError, also where another user has put something in the place of the file.
    """
    with suppress(FileNotFoundError):
        file = open_nofollow(folder_of(state_folder) / LIMITS, os.O_WRONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != state_folder.stat().st_uid:
                raise PermissionError(errno.EPERM, "it belongs to another user", str(folder_of(state_folder)))
            os.pwrite(file, limits, 0)
        finally:
            os.close(file)


def remove(state_folder: Path) -> None:
    """Remove the folder of a tenant, if there is one."""
    shutil.rmtree(folder_of(state_folder), ignore_errors=True)


def sweep() -> None:
    """Remove this user's tenants whose state folders are gone; root calls sweep_others(), too."""
    with (
        suppress(OSError),
        opened_folder(Path(abi.LOCK_DIR)) as place,
        os.scandir(f"/proc/self/fd/{place}") as folders,
    ):
        for stale in [folder.path for folder in folders if _is_stale(folder)]:
            shutil.rmtree(stale, ignore_errors=True)
    if os.geteuid() == 0:
        sweep_others()


def sweep_others() -> bool:
    """Remove, as root, what other users have left; return whether there is more of it, for the next sweep.

    Of programs that make their folders themselves, that is what nobody has written for a day; they make them again. Of
    the rest each user keeps those that were written last, and what was written within the hour.
    """
    removed = 0
    with suppress(OSError), opened_folder(Path(abi.LOCK_DIR)) as place:
        for left in _left_by_others(place):
            with suppress(OSError):  # an unreadable folder keeps no other
                removed += _remove_flat(place, left)
            if removed == _MOST_REMOVED:
                return True
    return False


class _Left(NamedTuple):
    """A folder of another user: its age in seconds, the user, its name."""

    age_s: float
    user: int
    name: str


def _left_by_others(place: int) -> Iterator[_Left]:
    now_s = time.time()
    kept: Counter[int] = Counter()
    with os.scandir(f"/proc/self/fd/{place}") as entries:
        others = sorted(left for entry in entries if (left := _of_another(entry, now_s)))
    for left in others:
        if left.name.startswith((".", _PROGRAM)):
            is_left = left.age_s > _FORGOTTEN_S
        else:
            kept[left.user] += 1
            is_left = kept[left.user] > _KEPT_OF_ANOTHER and left.age_s > _KEPT_S
        if is_left:
            yield left


def _of_another(entry: os.DirEntry[str], now_s: float) -> _Left | None:
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        user = status.st_uid
        if user == os.geteuid():
            return None
        with suppress(OSError):
            status = _presence_status(entry.path)
        return _Left(abs(now_s - status.st_mtime), user, entry.name)
    return None


def _presence_status(place: str) -> os.stat_result:
    """Look at a tenant's presence, and follow no link that its user may have put there. Raises OSError."""
    folder = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.stat(abi.PRESENCE_NAME, dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(folder)


def _remove_flat(place: int, left: _Left) -> bool:
    """Remove a folder or file of another user, who may have put anything in a folder, and be changing it.

    What is in it goes some at a time, and nothing deep at all: however much there is, no sweep is held up by it.
    Raises OSError for a folder that cannot be read.
    """
    with suppress(NotADirectoryError, FileNotFoundError):
        folder = os.open(left.name, _OPEN_FOLDER, dir_fd=place)
        try:
            if os.fstat(folder).st_uid != left.user:
                return False
            with os.scandir(folder) as entries:
                for entry in islice(entries, _MOST_IN_ONE):
                    with suppress(OSError):
                        remove = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                        remove(entry.name, dir_fd=folder)
        finally:
            os.close(folder)
        with suppress(OSError):
            os.rmdir(left.name, dir_fd=place)
            return True
        return False
    with suppress(OSError):
        os.unlink(left.name, dir_fd=place)
        return True
    return False


def _is_stale(folder: os.DirEntry[str]) -> bool:
    """Ask whether a folder is stale. Each launch asks this of all, maybe thousands: Paths would take twice as long."""
    try:
        status = folder.stat(follow_symlinks=False)
        if status.st_uid != os.geteuid():
            return False
        if folder.name.startswith(_PROGRAM):
            status = os.lstat(f"{folder.path}/{abi.PRESENCE_NAME}")
        is_old = time.time() - status.st_mtime > _FORGOTTEN_S
        if folder.name.startswith((".", _PROGRAM)):
            return is_old
        of = _read_own(f"{folder.path}/{_OF}") or b"."
        return not _is_there(of) and (is_old or _is_there(of.rpartition(b"/")[0] or b"/"))  # else its disk may be away
    except (OSError, ValueError):
        return False


def _read_own(path: str) -> bytes:
    """Read a file in a folder of this user's, where nobody else can put anything. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def _is_there(path: bytes) -> bool:
    """Ask whether something is at this path. Raises OSError where that cannot be told."""
    try:
        os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
