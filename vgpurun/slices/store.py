"""The slices of this host: each is a folder, and the folder is all there is.

    <root>/slices/<name>/    as a container's state folder (storage/state.py); the owner file has what is in _Owner
    <root>/slices/.<name>-*  one that is being made or removed

A slice appears and disappears by a rename, so that there is never half of one; what a killed command leaves has a dot
before its name. Commands that change or remove a slice keep each other out by its lock, which only its owner can open.
What joins it has no lock, since all its users would have it: it looks again once it can be seen to have joined, and
a command that removes the slice says so in the owner file before it looks for what has joined. So one sees the other.
"""

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.errors import SliceError, StateError
from vgpurun.limits import limits_file
from vgpurun.limits.model import quotas_from_json, quotas_to_json
from vgpurun.limits.quota import Quota
from vgpurun.storage import holders, state, tenants
from vgpurun.storage.holders import LOCK, open_folder_lock
from vgpurun.util.access_list import let_through
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.locking import is_at, lock_in_time
from vgpurun.util.times import boot_s
from vgpurun.util.users import current_user, gid_of, groups_of, uid_of

if TYPE_CHECKING:
    from vgpurun.limits.model import DeviceQuota

ALL_USERS = "all"
_REMOVED_BY = "removed_by"  # in the owner file
_REMOVAL_TAKES_S = 60.0  # at the very most: an engine that is busy answers late
_RETRY_S = 0.02


@dataclass(frozen=True)
class Slice:
    """A slice as it is now. `quotas` are by the UUIDs of its GPUs, `driver` is host or sim.

    `user` made it, and `users` may use it too: names, @groups, or all. `created_s` is seconds since 1970.
    """

    name: str
    folder: Path
    quotas: tuple[tuple[str, Quota], ...]
    user: str
    users: tuple[str, ...] = ()
    driver: str = "host"
    created_s: float = 0.0
    ends_s: float | None = None
    inode: int = 0  # its folder's: another slice of that name has another
    removed_by: object = None  # the command that is about to, as in holders.py

    @property
    def named(self) -> str:
        """The slice, for people."""
        return f"slice {self.name}"

    @property
    def removal(self) -> str:
        """What removes it, for people."""
        return f"remove it: vgpurun slice rm {self.name}"

    @property
    def id(self) -> str:
        """Its identity among all holders of a GPU."""
        return f"slice:{self.folder}"

    @property
    def limits_folder(self) -> Path:
        """The folder of its limits and usage."""
        return self.folder

    @property
    def usage(self) -> Path:
        """The usage file of all that have joined."""
        return self.folder / "run" / "usage"

    @property
    def together(self) -> bool:
        """Whether what joins it works on the GPUs at the same time, by MPS."""
        return any(quota.together for _, quota in self.quotas)

    def is_over(self) -> bool:
        """Ask whether its time has ended: then it reserves nothing more."""
        return self.ends_s is not None and self.ends_s <= boot_s()

    def is_being_removed(self) -> bool:
        """Ask whether a command is about to remove it."""
        try:
            return holders.is_any_alive(self.removed_by)
        except PermissionError:
            return True

    def may_use(self, user: str) -> bool:
        """Whether this user may start programs in it."""
        named = {self.user, *self.users}
        return bool({user, ALL_USERS} & named) or any(f"@{group}" in named for group in groups_of(user))


def slices_folder() -> Path:
    """Return where the slices of the host are. All users' launches count a slice: so it is root's."""
    return state.host_root() / state.SLICES


def make(
    name: str,
    quotas: Sequence["DeviceQuota"],
    files: Mapping[str, bytes],
    driver: str = "host",
    users: Sequence[str] = (),
    user: str | None = None,
    links: Mapping[str, str] = {},
    span_s: float | None = None,
    writer: int | None = None,
) -> Slice:
    """Make a slice. `files` are shared_files(), `links` further symbolic ones; it is of `user` (None: of this one).

    `writer` is the user whose processes alone will be in it, None: those of any user.

    Raises SliceError if there is one of that name, and StateError.
    """
    place = slices_folder() / name
    owner = {
        "slice": name,
        "user": user or current_user(),
        "users": list(users),
        "driver": driver,
        "created_s": int(time.time()),
        **({} if span_s is None else state.end_after(span_s)),
        "quota": quotas_to_json(quotas),
    }
    folder = state.StateFolder.make(_hidden(place), files, owner, links=links, writer=writer)
    try:
        if writer is None:
            _let_in(folder.path, [str(owner["user"]), *users])
        _flush(folder.path)
        folder.path.rename(place)
    except OSError as error:
        folder.remove()
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise there_is_one(name) from None
        raise StateError(f"cannot make the slice {place}: {error.strerror}") from None
    made = _read(place)  # while the lock is held: afterwards anybody may change or remove it
    folder.close()
    tenants.make(place, writer)
    _flush_folder(place.parent)
    if made is None:
        raise StateError(f"the slice {place} cannot be read again")
    return made


def _let_in(folder: Path, users: Sequence[str]) -> None:
    """Let the processes of these users count in a slice, and no others hold its slots. Raises OSError.

    Containers have the usage file mounted and need nothing of it.
    """
    uids = {uid for name in users if not name.startswith("@") and (uid := uid_of(name))}
    gids = {gid for name in users if name.startswith("@") and (gid := gid_of(name[1:])) is not None}
    try:
        let_through(folder / "run", uids, gids, is_open=ALL_USERS in users)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        raise OSError(error.errno, "its file system has no access lists (ACLs) to let its users in") from None


def there_is_one(name: str) -> SliceError:
    """Return the error for a name that is taken."""
    return SliceError(
        f"there is a slice {name} already; choose another name, or change it: vgpurun slice update {name}"
    )


def check_new(name: str) -> None:
    """Raise SliceError where no slice of this name can be made: by this user, or because there is one."""
    if os.geteuid() != 0 and not os.environ.get("VGPURUN_STATE_DIR"):
        raise SliceError(
            "only root can make a slice, because every user's launches count it: sudo vgpurun slice create"
        )
    if (slices_folder() / name).exists():
        raise there_is_one(name)


def slices() -> list[Slice]:
    """Return the slices of this host, by their names."""
    try:
        entries = [entry for entry in slices_folder().iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []  # there has been none yet
    return sorted(filter(None, map(_read, entries)), key=lambda each: each.name)


def find(name: str) -> Slice:
    """Return the slice of a name. Raises SliceError."""
    place = slices_folder() / name
    found = _read(place) if name and place.name == name else None
    if found is None:
        others = ", ".join(each.name for each in slices())
        existing = f" (existing: {others})" if others else ""
        raise SliceError(f"there is no slice '{name}'{existing}; make one with: vgpurun slice create")
    return found


@contextmanager
def joining(name: str) -> Iterator[Slice]:
    """Yield a slice; at the end what joins it is to be seen, and the slice is there still.

    Raises SliceError for one that is not there, or not the user's, also at the end.
    """
    found = _settled(name)
    user = current_user()
    if os.geteuid() != 0 and not found.may_use(user):
        raise SliceError(
            f"slice {name} is not for user {user}, but for {', '.join([found.user, *found.users])}; root may "
            f"change that: vgpurun slice update --users NAMES {name}"
        )
    if found.is_over():
        raise SliceError(
            f"slice {name} has reached its --for limit; root can make a new one: vgpurun slice create --for TIME"
        )
    renew(found)
    yield found
    if not _is_there(found):
        raise _removed(name)


def _is_there(found: Slice) -> bool:
    with suppress(SliceError):
        return _settled(found.name).inode == found.inode
    return False


def _settled(name: str) -> Slice:
    """Return a slice that nobody is about to remove. Raises SliceError."""
    give_up_at = time.monotonic() + _REMOVAL_TAKES_S
    while (found := find(name)).is_being_removed():
        if time.monotonic() >= give_up_at:
            raise SliceError(f"slice {name} is being removed; try again")
        time.sleep(_RETRY_S)
    return found


def _removed(name: str) -> SliceError:
    return SliceError(f"slice {name} has just been removed")


@contextmanager
def alone(found: Slice, patience_s: float = 5.0) -> Iterator[Slice]:
    """Keep others from changing or removing a slice; yields it as it is now.

    Entering it raises SliceError when they do not get done, or have removed it.
    """
    try:
        lock = open_folder_lock(found.folder, os.O_CREAT)
    except OSError as error:
        raise SliceError(f"slice {found.name} cannot be changed: {error.strerror}; only root may") from None
    try:
        if not lock_in_time(lock, fcntl.LOCK_EX, patience_s):
            raise SliceError(f"slice {found.name} is being changed by another command; try again")
        now = _read(found.folder)
        if now is None or not is_at(lock, found.folder / LOCK):
            raise _removed(found.name)
        yield now
    finally:
        os.close(lock)


@contextmanager
def being_removed(found: Slice) -> Iterator[None]:
    """Say to what would join a slice that it is about to go: what has joined can be seen from now on.

    The caller is alone(). Raises StateError.
    """
    owner = state.read_owner(found.folder) or {}
    _write_owner(found, {**owner, _REMOVED_BY: holders.record_of([os.getpid()])})
    try:
        yield
    except BaseException:
        _write_owner(found, owner)
        raise


def write_owner(
    found: Slice, quotas: Sequence["DeviceQuota"] | None = None, users: Sequence[str] | None = None
) -> Slice:
    """Write down what has changed of a slice. Raises StateError."""
    owner = state.read_owner(found.folder) or {}
    if quotas is not None:
        owner["quota"] = quotas_to_json(quotas)
    if users is not None:
        owner["users"] = list(users)
        with _refused(found):
            if not state.is_of_one_user(found.folder):
                _let_in(found.folder, [found.user, *users])
    _write_owner(found, owner)
    return _read(found.folder) or found


def _write_owner(found: Slice, owner: Mapping[str, object]) -> None:
    with _refused(found):
        state.write_owner(found.folder, owner)


@contextmanager
def _refused(found: Slice) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"{found.folder}: {error.strerror}; only root may change it") from None


def remove(found: Slice) -> None:
    """Remove a slice. Raises StateError."""
    gone = _hidden(found.folder)
    try:
        found.folder.rename(gone)
    except OSError as error:
        raise StateError(f"{found.folder}: {error.strerror}; only root may remove it") from None
    tenants.remove(found.folder)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(is_dry_run: bool = False) -> list[tuple[Path, int]]:
    """Remove what killed commands have left of slices; return it, with the bytes that it took on the disk."""
    removed = []
    with suppress(OSError):
        for entry in sorted(slices_folder().glob(".*")):
            owner, size_bytes = state.read_owner(entry), state.size_bytes(entry)
            if not state.is_held(entry) if is_dry_run else state.remove_free(entry, owner):
                removed.append((entry, size_bytes))
    return removed


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}-{os.urandom(6).hex()}")


def _read(folder: Path) -> Slice | None:
    """The limits file says what the limits are; where it cannot be read, what was written down of it does."""
    owner = state.read_owner(folder)
    if owner is None or owner.get("slice") != folder.name:
        return None
    quotas, inode = None, 0
    with suppress(OSError):
        inode = folder.stat().st_ino
    with suppress(OSError):
        quotas = limits_file.read_limits(folder / "etc" / "limits")
    return Slice(
        name=folder.name,
        folder=folder,
        quotas=tuple(quotas_from_json(str(owner.get("quota"))) if quotas is None else quotas),
        user=str(owner.get("user", "")),
        users=tuple(map(str, owner.get("users") or ())),
        driver=str(owner.get("driver", "host")),
        created_s=float(owner.get("created_s", 0)),
        ends_s=state.ends_s(owner),
        inode=inode,
        removed_by=owner.get(_REMOVED_BY),
    )


def renew(found: Slice) -> None:
    """Write the limits file anew where it is another version's, which this version's library would not read.

    What an older version left open to all is closed to all but the slice's users, as far as it is this user's. Raises
    StateError.
    """
    path = found.folder / "etc" / "limits"
    try:
        run = found.usage.parent.stat()
        if run.st_uid == os.geteuid() and run.st_mode & stat.S_IROTH and not state.is_of_one_user(found.folder):
            _let_in(found.folder, [found.user, *found.users])
        if limits_file.read_limits(path) is None:
            with atomic_file(path) as half_made:  # running programs have the old one mapped
                half_made.write_bytes(limits_file.limits_bytes(found.quotas))
    except OSError as error:
        raise StateError(
            f"{path} is of another version of vgpurun and cannot be written anew: {error.strerror}; root may do so: "
            f"sudo vgpurun slice update --mem ... {found.name}"
        ) from None


def _flush(folder: Path) -> None:
    """A slice outlives a reboot, also one that nobody wanted. Its usage may be lost: it is that of processes."""
    for path in (folder / "owner", *(folder / "etc").iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for place in (folder / "etc", folder):
        _flush_folder(place)


def _flush_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
