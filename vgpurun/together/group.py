"""A group: the programs of one user that work on the GPUs at the same time, in a slice or without, and its folder.

    <root>/together/<key>/            0700  <root> is the user's own, as for state folders (storage/state.py). Its
                                            keeper (keeper.py) has it locked, by which others know that there is one
                            members   locked shared by each launch, and by what it starts; containers have pipe/ mounted
                            keeper    JSON: what the keeper has seen
                            pipe/     by which CUDA finds the server
                            log/      the server's
                            slice     a link to the slice that containers join by its CDI device: pipe/ stays with it

The kernel drops a member's lock with its processes, so that nothing has to be told of their end. The key is the slice's
inode: one that was made anew under its name has another folder. A name would make sockets' paths too long. Without a
slice, a user's programs on the same GPUs are a group.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from vgpurun.errors import TogetherError
from vgpurun.host.mounted import mounts_of, place_of
from vgpurun.storage import holders, state
from vgpurun.storage.shared_file import read_regular
from vgpurun.util.locking import is_at, lock_in_time, open_lock
from vgpurun.util.nofollow import replace_nofollow

MEMBERS, PIPES = "members", "pipe"
ENV_PIPES, ENV_LOGS, ENV_SMS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
LOST = "what kept the MPS server has been killed, and with the server went the GPU work of all its programs"
_SOCKET = "control"  # in the folder of pipes
_SLICE = "slice"
_MOST_PATH = 107  # bytes, of a socket's
_PATIENCE_S = 30.0
_MOST_TRIES = 100
_ASKED_S = 5.0  # for which others may hold up a new keeper by asking for one
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_RECORD_BYTES = 1 << 20


@dataclass(frozen=True)
class Group:
    """A group, by the name of its folder, and the folder of its slice where it has one."""

    key: str
    slice_folder: Path | None = None

    @classmethod
    def of(cls, slice_folder: Path) -> "Group":
        """Return this user's group of a slice. Raises TogetherError."""
        try:
            return cls.of_slice(slice_folder, slice_folder.stat().st_ino)
        except OSError as error:
            raise TogetherError(f"{_named(slice_folder)} cannot be looked at: {error.strerror}") from None

    @classmethod
    def of_slice(cls, slice_folder: Path, inode: int) -> "Group":
        """Return this user's group of the slice whose folder has this inode."""
        return cls(f"{inode:x}", slice_folder)

    @classmethod
    def of_gpus(cls, uuids: Iterable[str]) -> "Group":
        """Return this user's group of all that is in no slice and has these GPUs."""
        return cls(f"gpus-{crc32(' '.join(sorted(uuids)).encode()):08x}")

    @property
    def named(self) -> str:
        """The group, for people."""
        return _named(self.slice_folder) if self.slice_folder else "what works on these GPUs by --together"

    @property
    def folder(self) -> Path:
        """The folder, which is there while the group has members."""
        return state.root_folder() / state.TOGETHER / self.key

    @property
    def pipes(self) -> Path:
        """The folder by which CUDA finds the server."""
        return self.folder / PIPES

    @property
    def logs(self) -> Path:
        """The folder of the server's logs."""
        return self.folder / "log"

    def check_path(self) -> None:
        """Raise TogetherError where no socket can be made, since its path would be too long."""
        if len(os.fsencode(self.pipes / _SOCKET)) > _MOST_PATH:
            raise TogetherError(
                f"{self.pipes} is too long for a socket's path; set VGPURUN_STATE_DIR to a folder with a shorter one"
            )

    def record(self) -> dict[str, Any]:
        """Return what the keeper has written down, or nothing."""
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(read_regular(self.folder / "keeper", _MOST_RECORD_BYTES) or b"")
            return found if isinstance(found, dict) else {}
        return {}

    def write_record(self, record: Mapping[str, object]) -> None:
        """Write that down. Raises OSError."""
        replace_nofollow(self.folder / "keeper", json.dumps(record).encode(), is_flushed=False)

    def is_kept(self) -> bool:
        """Whether its keeper lives."""
        return is_kept(self.folder)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Be the keeper. Raises TogetherError."""
        try:
            folder = os.open(self.folder, _FOLDER)
        except OSError as error:
            raise TogetherError(f"cannot use {self.folder}: {error.strerror}") from None
        try:
            if not lock_in_time(folder, fcntl.LOCK_EX, _ASKED_S):
                raise TogetherError(f"{self.named} has a keeper")
            yield
        finally:
            os.close(folder)

    def hold_slice(self) -> None:
        """Keep the slice's folder open as long as this process lives: no other gets its inode, and so this group.

        Raises TogetherError where it has gone meanwhile.
        """
        if self.slice_folder is None:
            return
        with suppress(OSError):
            if f"{os.fstat(os.open(self.slice_folder, os.O_PATH | os.O_CLOEXEC)).st_ino:x}" == self.key:
                return
        raise TogetherError(f"{self.named} has been removed")

    def offer(self) -> Path:
        """Return the folder of pipes, from now on there as long as the slice: containers have it before they join.

        Raises TogetherError.
        """
        with self.joined():
            try:
                make_private(self.pipes)
                with suppress(FileExistsError):
                    (self.folder / _SLICE).symlink_to(self.slice_folder or "")
            except OSError as error:
                raise TogetherError(f"cannot use {self.folder}: {error.strerror}") from None
        return self.pipes

    def withdraw(self) -> None:
        """Have the pipes go with their last member, though their slice is there. Raises TogetherError."""
        try:
            (self.folder / _SLICE).unlink(missing_ok=True)
        except OSError as error:
            raise TogetherError(f"cannot use {self.folder}: {error.strerror}") from None

    @contextmanager
    def joined(self) -> Iterator[int]:
        """Yield the open file by which this process is a member; a process that inherits it is one, too.

        Raises TogetherError.
        """
        lock = self._join()
        try:
            yield lock
        finally:
            os.close(lock)

    def _join(self) -> int:
        """Lock the folder, made if need be: one that a keeper is about to remove is waited for, and made anew."""
        for _ in range(_MOST_TRIES):
            try:
                make_private(self.folder)
                lock = open_lock(self.folder / MEMBERS)
            except FileNotFoundError:
                continue  # it was removed just now
            except OSError as error:
                raise TogetherError(f"cannot use {self.folder}: {error.strerror}") from None
            if not lock_in_time(lock, fcntl.LOCK_SH, _PATIENCE_S):
                os.close(lock)
                raise TogetherError(f"the server of {self.named} does not end; try again")
            if is_at(lock, self.folder / MEMBERS):
                return lock
            os.close(lock)
        raise TogetherError(f"{self.folder} is removed again and again; try again")


def _named(folder: Path) -> str:
    """Return what a folder is of, for people."""
    return f"{'claim' if folder.parent.name == state.CLAIMS else 'slice'} {folder.name}"


def is_kept(folder: Path) -> bool:
    """Whether a keeper looks after the group with this folder: the kernel says so, also where a disk is full."""
    with suppress(FileNotFoundError, NotADirectoryError):
        file = os.open(folder, _FOLDER)
        try:
            return holders.is_locked(file)
        finally:
            os.close(file)
    return False


def left_in(folder: Path) -> list[Path]:
    """Return what is to go of a group's folder that nobody uses: all of it, or what is beside and in offered pipes.

    Raises OSError.
    """
    if not _is_offered(folder):
        return [folder]
    staying = (MEMBERS, PIPES, _SLICE)
    return [*(each for each in folder.iterdir() if each.name not in staying), *(folder / PIPES).iterdir()]


def _is_offered(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return (folder / _SLICE).stat().st_ino == int(folder.name, 16)
    return False


def remove(paths: Iterable[Path]) -> None:
    """Remove files and folders with what is in them. Raises OSError."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            _remove_folder(path)
        else:
            path.unlink()


def _remove_folder(path: Path) -> None:
    """Remove a folder of any depth, which containers choose: what lies deep is moved up to be removed there."""
    top = os.open(path, _FOLDER)
    try:
        names = ["."]
        while names:
            names += _empty(name := names.pop(), top)
            if name != ".":
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def _empty(name: str, top: int) -> list[str]:
    """Remove the files of a folder in another one, and move its folders into that; return their names there."""
    folder, names = os.open(name, _FOLDER, dir_fd=top), []
    try:
        for each in list(os.scandir(folder)):
            if each.is_dir(follow_symlinks=False):
                names.append(os.urandom(8).hex())
                os.rename(each.name, names[-1], src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(each.name, dir_fd=folder)
    finally:
        os.close(folder)
    return names


def is_mounted(pipes: Path) -> bool:
    """Whether a container that runs has a group's folder of pipes. Raises nothing."""
    place = place_of(pipes)
    seen: set[Path] = set()
    for process in (each for each in Path("/proc").iterdir() if each.name.isdecimal()):
        with suppress(OSError):
            namespace = (process / "ns" / "mnt").readlink()
            if namespace not in seen and any(each.place == place for each in mounts_of(process)):
                return True
            seen.add(namespace)
    return False


def is_member(process: Path, group: Group) -> bool:
    """Whether a process of /proc is of the group: by its start, by its mounts, or by what it has inherited open.

    A container's root may put a socket of its own into the folder of pipes, and name any process as a client. Raises
    nothing.
    """
    with suppress(OSError):
        if os.fsencode(f"{ENV_PIPES}={group.pipes}") in (process / "environ").read_bytes().split(b"\0"):
            return True
        place, lock = place_of(group.pipes), (group.folder / MEMBERS).stat()
        return any(each.place == place for each in mounts_of(process)) or holders.has_open(process, lock)
    return False


def make_private(folder: Path) -> None:
    """Make a folder of this user's alone. Raises OSError."""
    state.make_readable(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is another user's")
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder")


def folders() -> list[Path]:
    """Return the folders of this user's groups: what others have put beside them may lead anywhere."""
    with suppress(OSError), os.scandir(state.root_folder() / state.TOGETHER) as found:
        return sorted(Path(each) for each in found if _is_own_folder(each))
    return []


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(FileNotFoundError):
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False
