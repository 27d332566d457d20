"""The state folders: one for each container or local process, with its limits and its usage.

    <root>/containers/<name>/        0755  the folder; 0700 while it is being made
                            lock     0600  held while the folder is being made, or by a local process (holders.py)
                            changing 0600  held while the limits are being changed (limits/update.py)
                            owner    JSON  which process, or container of which engine, it belongs to; what it was given
                            etc/           read-only in the container: limits, ld.so.preload
                            run/     0700  usage, 0666: written by the container's processes, by a mount. Whoever could
                                           open it could lock its slots. 0755 and 0600 where one user's write it alone
    <root>/slices/<name>/                  the same for what joins a slice, which has the limits and usage of all

<root> is VGPURUN_STATE_DIR, else /var/lib/vgpurun for root, else vgpurun in the XDG state home. A folder whose lock is
free and whose container is gone is stale and swept by the next launch: so a killed vgpurun leaves nothing for long. A
process that closed its part of the lock, as daemons do, keeps its folder as long as it uses a GPU.
"""

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import sizeof
from pathlib import Path
from typing import Any

from vgpurun import abi
from vgpurun.errors import StateError
from vgpurun.storage import holders, tenants
from vgpurun.storage.holders import open_folder_lock
from vgpurun.storage.shared_file import has_live_processes, read_regular
from vgpurun.storage.tenants import make_lock_dir as make_lock_dir
from vgpurun.storage.unchanged import Unchanged
from vgpurun.util.access_list import let_through
from vgpurun.util.locking import is_at, lock_in_time
from vgpurun.util.nofollow import replace_nofollow
from vgpurun.util.process_identity import boot_id, identify
from vgpurun.util.times import boot_s

CHANGING = "changing"
_OF_ONE_USER = 0o600  # the mode of a usage file that one user's processes alone write
CONTAINERS, SLICES = "containers", "slices"  # the folders in the root; local processes are among the first
CLAIMS = "claims"  # likewise, of Kubernetes (kubernetes/dra/state.py)
TOGETHER = "together"  # likewise, with the groups of slices made with --together
ROOT_FOLDER = Path("/var/lib/vgpurun")
_PATIENCE_S = 30.0
_MOST_TIME_S = 253402300800  # the year 10000, which no calendar here has
_MOST_OWNER_BYTES = 16 << 20  # several times what a command line may have, which is the longest thing in it


def root_folder() -> Path:
    """Return where all state is kept."""
    if given := os.environ.get("VGPURUN_STATE_DIR"):
        return _followable(Path(given))
    if os.geteuid() == 0:
        return ROOT_FOLDER
    home = os.environ.get("XDG_STATE_HOME", "")
    return _followable((Path(home) if home.startswith("/") else Path.home() / ".local" / "state") / "vgpurun")


def _followable(path: Path) -> Path:
    """Return a path by which others find what is there: they follow no links but root's (util/nofollow.py)."""
    return path.absolute() if os.geteuid() == 0 else path.resolve()


def new_folder_path(name: str | None = None) -> Path:
    """Return a path for a new state folder that no other launch uses. Makes nothing."""
    token = os.urandom(6).hex()
    return root_folder() / CONTAINERS / (f"{name}-{token}" if name else token)


class StateFolder:
    """A state folder that this process has made. As long as it is open nobody sweeps it."""

    def __init__(self, path: Path, lock: int, owner: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = lock
        self._owner = {**owner, holders.RECORD: holders.record_of([os.getpid()])}

    @classmethod
    def make(
        cls,
        path: Path,
        files: Mapping[str, bytes],
        owner: Mapping[str, Any],
        has_usage: bool = True,
        links: Mapping[str, str] = {},
        writer: int | None = None,
    ) -> "StateFolder":
        """Make the folder with these files and symbolic links (by relative path).

        `has_usage`: what joins a slice has no usage file of its own. `writer` is the user whose processes alone write
        it, None: those of any. Raises StateError, and then leaves nothing behind.
        """
        try:
            make_readable(path.parent)
            lock = _make_locked(path)
        except OSError as error:
            raise StateError(
                f"cannot make the state folder {path}: {error.strerror}; set VGPURUN_STATE_DIR to a folder of yours"
            ) from None
        folder = cls(path, lock, owner)
        try:
            folder._fill(files, has_usage, links)
            if writer is not None:
                folder._give_usage_to(writer)
        except OSError as error:
            folder.remove()
            raise StateError(f"cannot write the state folder {path}: {error.strerror}") from None
        return folder

    def _fill(self, files: Mapping[str, bytes], has_usage: bool, links: Mapping[str, str]) -> None:
        """Write files and folders whose modes ignore the umask: any user of the container must get through."""
        folders = filter(None, (os.path.dirname(link) for link in links))  # noqa: PTH120
        for name in dict.fromkeys(("etc", "run", *folders)):
            (self.path / name).mkdir()
            (self.path / name).chmod(0o700 if name == "run" else 0o755)
        for link, target in links.items():
            (self.path / link).symlink_to(target)
        if has_usage:
            self._make_usage_file()
        for name, content in {**files, "owner": json.dumps(self._owner).encode()}.items():
            (self.path / name).write_bytes(content)
            (self.path / name).chmod(0o644)
        (self.path / CHANGING).touch(0o600)
        self.path.chmod(0o755)

    def _make_usage_file(self) -> None:
        """Make the usage file at its full size, so that nobody can replace it and no full disk is met later."""
        file = os.open(self.path / "run" / "usage", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.posix_fallocate(file, 0, sizeof(abi.Usage))
            os.fchmod(file, 0o666)
        finally:
            os.close(file)

    def _give_usage_to(self, user: int) -> None:
        usage = self.path / "run" / "usage"
        usage.chmod(_OF_ONE_USER)
        os.chown(usage, user, -1)
        usage.parent.chmod(0o755)

    def let_in(self, user: int) -> None:
        """Let another user, whose engine makes the containers, mount the usage file in them. Raises StateError."""
        try:
            let_through(self.path / "run", {user} - {os.geteuid()}, ())
        except OSError as error:
            raise StateError(
                f"the engine of user {user} cannot be let into {self.path}: {error.strerror}; run vgpurun as that user"
            ) from None

    def give_to(self, container: str) -> None:
        """Record the id of the container that the folder belongs to from now on. Raises StateError."""
        self._owner["container"] = container
        try:
            write_owner(self.path, self._owner, is_flushed=False)  # a start waits for no disk
        except OSError as error:
            raise StateError(f"cannot write the state folder {self.path}: {error.strerror}") from None

    def note_holders(self, pids: Iterable[int]) -> None:
        """Write down for other users which processes hold the folder. Raises OSError."""
        self._owner[holders.RECORD] = holders.record_of(pids)
        write_owner(self.path, self._owner, is_flushed=False)

    @property
    def lock(self) -> int:
        """The file descriptor that holds the folder. A process that inherits it keeps it as well."""
        return self._lock

    def close(self) -> None:
        """Let go of the folder; from now on it lives as long as its container."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        tenants.remove(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def is_of_one_user(folder: Path) -> bool:
    """Whether the processes of one user alone count in a state folder. Raises OSError."""
    return stat.S_IMODE((folder / "run" / "usage").stat().st_mode) == _OF_ONE_USER


def read_owner(folder: Path) -> dict[str, Any] | None:
    """Return what was written about the owner of a state folder, or None when that cannot be read."""
    try:
        owner = json.loads(read_regular(folder / "owner", _MOST_OWNER_BYTES) or b"")
    except (OSError, ValueError, RecursionError):
        return None
    return owner if isinstance(owner, dict) else None


known_owner = Unchanged("owner", read_owner, None)  # the same, for what looks at many folders again and again


def end_after(span_s: float) -> dict[str, object]:
    """Return the owner file's entries for an end that far from now."""
    return {"ends_s": time.time() + span_s, "ends_boot_s": boot_s() + span_s, "boot": boot_id()}


def ends_s(owner: Mapping[str, Any]) -> float | None:
    """Return when the owner's time ends, by the boot clock, or None where it has no end.

    The time of day decides only after a reboot, so setting it ends nothing.
    """
    if owner.get("boot") == boot_id() and (ends := _moment(owner.get("ends_boot_s"))) is not None:
        return ends
    ends = _moment(owner.get("ends_s"))
    return None if ends is None else boot_s() + ends - time.time()


def _moment(seconds: object) -> float | None:
    return float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < _MOST_TIME_S else None


def write_owner(folder: Path, owner: Mapping[str, Any], is_flushed: bool = True) -> None:
    """Say anew whose a state folder is. Raises OSError."""
    replace_nofollow(folder / "owner", json.dumps(owner).encode(), is_flushed)


def host_root() -> Path:
    """Return the root folder of all state that concerns every user of the host."""
    given = os.environ.get("VGPURUN_STATE_DIR")
    return _followable(Path(given)) if given else ROOT_FOLDER


def visible_roots() -> list[Path]:
    """Return the roots of state that concerns this user's launches: the user's own, and root's, which all can read."""
    own = root_folder()
    return [own] if os.environ.get("VGPURUN_STATE_DIR") or own == ROOT_FOLDER else [own, ROOT_FOLDER]


def folders(roots: Sequence[Path] | None = None) -> Iterator[Path]:
    """Yield every state folder of these roots (None: the own one), stale ones included."""
    for root in [root_folder()] if roots is None else roots:
        with suppress(OSError), os.scandir(root / CONTAINERS) as entries:
            yield from map(Path, sorted(entry.path for entry in entries if entry.is_dir()))


def is_held(folder: Path) -> bool:
    """Ask whether a process holds the folder: one that makes it, or a local process that runs under its limits.

    Raises PermissionError where that cannot be told from here.
    """
    try:
        lock = open_folder_lock(folder)
    except PermissionError:
        return holders.is_any_alive((read_owner(folder) or {}).get(holders.RECORD))
    except FileNotFoundError:
        return _is_held_as_before(folder)
    except OSError:
        return False  # something else is in its place
    try:
        return holders.is_locked(lock)
    finally:
        os.close(lock)


def _is_held_as_before(folder: Path) -> bool:
    """Ask the same about a folder that is gone, or that an older version made, with only a PID in its owner file."""
    pid = (read_owner(folder) or {}).get("pid")
    return isinstance(pid, int) and identify(pid) is not None


def free_folders() -> dict[Path, dict[str, Any] | None]:
    """Return the state folders that nobody holds, with their owners. Ask for the containers in use only after this.

    A folder that has its owner and is free has the container that it will ever have, so that a list made later has it.
    """
    owners = {folder: known_owner(folder) for folder in folders()}
    return {folder: owner for folder, owner in owners.items() if not _may_be_held(folder)}


def sweep(
    engine_states: Callable[[], tuple[str, set[str]]] | None = None,
    is_dry_run: bool = False,
    free: Mapping[Path, Mapping[str, Any] | None] | None = None,
    has_tenants: bool = True,
) -> list[tuple[Path, int]]:
    """Remove the folders of local processes that have ended and, given an engine, of its containers that are gone.

    Returns what was removed, or would be in a dry run, with the bytes that it took on the disk.

    `engine_states` returns the engine's id and the state folders of all its containers; it is not asked without need,
    and not before `free` was looked up. `has_tenants`: what tenants have left on the GPUs goes too.
    """
    free = free_folders() if free is None else free
    if has_tenants and not is_dry_run:
        tenants.sweep()
    engine_id: str | None = None
    in_use: set[str] = set()
    if engine_states and any((owner or {}).get("engine") for owner in free.values()):
        engine_id, in_use = engine_states()
    removed = []
    for folder, owner in free.items():
        engine = owner.get("engine") if owner else None
        if not is_alive(folder) if engine is None else engine == engine_id and not _is_among(in_use, folder):
            size = size_bytes(folder)
            if is_dry_run or remove_free(folder, owner):
                removed.append((folder, size))
    return removed


def _is_among(paths: set[str], folder: Path) -> bool:
    """Ask whether one of these paths leads to a folder: a container of a version before may have it by a link."""
    return str(folder) in paths or os.path.realpath(folder) in map(os.path.realpath, paths)


def is_alive(folder: Path) -> bool:
    """Whether a process holds the folder of a local process, or uses a GPU under its limits.

    Another user's is told by its holders alone, which `vgpurun local` writes down anew when it ends before others.
    """
    return _may_be_held(folder) or (_is_own(folder) and has_live_processes(folder / "run" / "usage"))


def _is_own(folder: Path) -> bool:
    with suppress(OSError):
        return os.geteuid() in (0, folder.lstat().st_uid)
    return False


def _may_be_held(folder: Path) -> bool:
    try:
        return is_held(folder)
    except PermissionError:
        return True


def remove_free(folder: Path, owner: Mapping[str, Any] | None) -> bool:
    """Remove a folder that nobody holds and that still has this owner; return whether this call removed it.

    Its maker may not have locked it yet, and makes it anew then.
    """
    try:
        lock = open_folder_lock(folder, os.O_CREAT)
    except OSError:
        return False
    try:
        # A process that only asks whether it is held has it for a moment.
        is_had = lock_in_time(lock, fcntl.LOCK_EX, 0.2)
        if not is_had or not is_at(lock, folder / holders.LOCK) or read_owner(folder) != owner:
            return False
        (folder / "owner").unlink(missing_ok=True)  # without it nobody takes it for a process that runs
        tenants.remove(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except OSError:
        return False
    finally:
        os.close(lock)


def size_bytes(folder: Path) -> int:
    """Return what a folder takes on the disk."""
    total, left = 0, [str(folder)]
    while left:  # os.walk() calls itself for each folder in a folder
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for each in entries:
                with suppress(OSError):
                    if each.is_dir(follow_symlinks=False):
                        left.append(each.path)
                    else:
                        total += each.stat(follow_symlinks=False).st_blocks * 512
    return total


def _make_locked(path: Path) -> int:
    """Make a folder that nobody else can look into, and return the file that holds it. Raises OSError, StateError."""
    while True:
        path.mkdir(mode=0o700)
        try:
            lock = open_folder_lock(path, os.O_CREAT)
        except FileNotFoundError:  # swept before it was locked
            continue
        is_had = lock_in_time(lock, fcntl.LOCK_EX, _PATIENCE_S)
        if is_had and is_at(lock, path / holders.LOCK):
            return lock
        os.close(lock)
        if not is_had:
            raise StateError(f"{path} is held by another process; try again")


def is_readable_by_all(folder: Path) -> bool:
    """Ask whether all users can pass through to a folder that this user makes, or will make with make_readable()."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return all(each.stat().st_mode & stat.S_IXOTH for each in (there, *there.parents))


def make_readable(folder: Path) -> None:
    """Make a folder and what is missing above it, so that every user can pass through."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        with suppress(FileExistsError):
            new.mkdir()
            new.chmod(0o755)
