"""Programs of `vgpurun local` on the GPUs that the library does not see: the guard holds a launch as a container.

A launch is told by its lock, which it holds open as long as its command runs, and which its user and root alone can
open; what others pass on to a process of somebody else says nothing. So nobody has his programs counted as another's.
Once it has such a program, its processes are gathered in a cgroup of their own that their children stay in; a launch
without one is let be.
"""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import CgroupError
from vgpurun.guard.containers import called
from vgpurun.guard.processes import is_ending, namespace_of
from vgpurun.guard.programs import Programs
from vgpurun.guard.questions import Questions
from vgpurun.guard.snapshot import Contained, Program
from vgpurun.host import freezer
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.host.freezer import run_of
from vgpurun.inventory.reservations import limits_now
from vgpurun.limits.model import quotas_from_json
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.slices import store
from vgpurun.storage.holders import LOCK
from vgpurun.storage.state import read_owner
from vgpurun.util.nofollow import open_nofollow, opened_folder
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import (
    ProcessIdentity,
    all_pids,
    boot_id,
    identify,
    line_of,
    pid_inside,
    read_stat,
    uid_of,
)
from vgpurun.util.users import name_of

GATHERED = "/vgpurun-"  # begins the name of a cgroup of ours
_LEFT = f"{GATHERED[1:]}local-"
_LIMITS_EVERY_S = 1.0  # those of launches of whose limits the kernel does not tell
_PASSES = 8  # over the processes of a launch, which may start others meanwhile

Quotas = Mapping[str, Quota]


class Launch(NamedTuple):
    """A launch as its state folder tells. `launcher` is its first process, None where that has ended before others."""

    launcher: ProcessIdentity | None
    user: str
    limits: Path
    quotas: Quotas
    around: Mapping[str, Quotas]


class Launches:
    """The launches that have processes on a GPU. `note` hears of each whose files do not answer, and of the end."""

    def __init__(self, clock: Callable[[], float], note: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._read_s = float("-inf")  # the limits
        self._folders: dict[tuple[int, int], Path | None] = {}  # by process: that of its launch, None for no launch
        self._gathered: dict[Path, Contained] = {}
        self._whose: Questions[tuple[int, int], tuple[Path | None, ...]] = Questions(note, "launch of")
        self._launches: Questions[Path, Launch | None] = Questions(note, "launch in")
        self._quotas: Questions[Path, tuple[int, Quotas]] = Questions(note, "limits in")
        self._changes = FolderWatch()
        self._watches: dict[Path, int] = {}  # of the limits, by launch; none before they are read, and where that fails
        freezer.remove_empty(_LEFT)  # by a guard that ended before its launches

    def read(self, programs: Programs) -> dict[str, Contained]:
        """Return those that are held as containers, by what the programs name from now on as theirs."""
        own = {each.id for each in self._gathered.values()}
        outside = {pid: each for pid, each in programs.by_pid.items() if each.container == "" or each.container in own}
        launched = {pid: folder for pid, each in outside.items() if (folder := self._folder_of(each))}
        alive = {(pid, each.started_ticks) for pid, each in outside.items()}
        self._folders = {key: folder for key, folder in self._folders.items() if key in alive}
        self._whose.keep(alive)
        of_launch: dict[Path, list[Program]] = {}
        for pid, folder in launched.items():
            of_launch.setdefault(folder, []).append(outside[pid])
        self._gather_new(of_launch)
        self._drop_ended(of_launch.keys())
        for pid, folder in launched.items():
            if folder in self._gathered and outside[pid].container != self._gathered[folder].id:
                programs.by_pid[pid] = outside[pid]._replace(container=self._gathered[folder].id)
        self._follow_limits()
        return {each.id: each for each in self._gathered.values()}

    def close(self) -> None:
        """Remove what is empty by now; the rest is removed by the next guard, or goes on being held by it."""
        self._changes.close()
        for each in self._gathered.values():
            with suppress(OSError):
                each.cgroup.folder.rmdir()

    def _folder_of(self, program: Program) -> Path | None:
        """Return the state folder of the launch that a process is of."""
        if program.foreign:
            return None
        key = program.pid, program.started_ticks
        if key not in self._folders:
            cgroups = {str(each.cgroup.folder): folder for folder, each in self._gathered.items()}
            own = freezer.of_process(program.pid)
            if own and str(own.folder) in cgroups:
                self._folders[key] = cgroups[str(own.folder)]
                return self._folders[key]
            trouble = f"process {program.pid} counts as of no launch: the files that it has open do not answer"
            if not (found := self._whose.ask(key, lambda: (_found(program),), (), trouble)):
                return None
            (self._folders[key],) = found
        return self._folders[key]

    def _gather_new(self, programs: Mapping[Path, Sequence[Program]]) -> None:
        """Gather the launches that have programs which the library does not see."""
        self._launches.keep(programs.keys() - self._gathered.keys())
        for folder in programs.keys() - self._gathered.keys():
            own = programs[folder]
            trouble = f"a launch is left alone: its folder {printable(str(folder))} does not answer"
            with suppress(OSError, CgroupError, ValueError):  # it has ended
                launch = self._launches.ask(folder, partial(_read, folder, own), None, trouble)
                if launch:
                    self._gathered[folder] = _gather(folder, launch, own)

    def _follow_limits(self) -> None:
        changed = self._changes.changed()
        self._watches = {folder: watch for folder, watch in self._watches.items() if watch not in changed}
        unknown = self._gathered.keys() - self._watches.keys()
        if not (unknown and (changed or self._clock() >= self._read_s + _LIMITS_EVERY_S)):
            return
        self._read_s = self._clock()
        self._quotas.keep(self._gathered.keys())
        for folder in unknown:
            each = self._gathered[folder]
            trouble = f"{each.name} keeps the limits that it had: those in {printable(str(each.folder))} do not answer"
            question = partial(_watched_limits, self._changes, each)
            watch, quotas = self._quotas.ask(folder, question, (NOT_WATCHED, each.quotas), trouble)
            if watch != NOT_WATCHED:
                self._watches[folder] = watch
            if quotas != each.quotas:
                self._gathered[folder] = each._replace(quotas=quotas)

    def _drop_ended(self, at_work: Set[Path]) -> None:
        for folder, each in list(self._gathered.items()):
            if folder not in at_work and (run_of(each.cgroup) != each.run or not each.cgroup.pids()):
                with suppress(OSError):
                    each.cgroup.folder.rmdir()
                del self._gathered[folder]
                self._watches.pop(folder, None)


def _watched_limits(changes: FolderWatch, launch: Contained) -> tuple[int, Quotas]:
    watch = changes.add(launch.folder / "etc")  # before they are read
    return watch, dict(limits_now(launch.folder, tuple(launch.quotas.items())))


def _found(program: Program) -> Path | None:
    """Return it by the lock that the process has open, or the next one that it descends from."""
    return next((folder for pid in line_of(program.pid) if (folder := _folder_held_by(pid))), None)


def _folder_held_by(pid: int) -> Path | None:
    """Return the state folder of the launch in which a process holds the lock; of a launch in another, the inner one's.

    That was opened later, and so has a greater number.
    """
    with suppress(OSError, ValueError):
        user = uid_of(pid)
        for file in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda each: -int(each.name)):
            with suppress(OSError):
                if (path := file.readlink()).name != LOCK:  # others may be on a server that does not answer
                    continue
                status = file.stat()
                is_lock = status.st_uid == user and os.path.samestat(status, _status(path))
                if is_lock and _is_launch(path.parent):
                    return path.parent
    return None


def _status(path: Path) -> os.stat_result:
    """Return the status of what a path of a user's leads to. Raises OSError, as for a link on the way."""
    file = open_nofollow(path, os.O_PATH)
    try:
        return os.fstat(file)
    finally:
        os.close(file)


def _user_of(folder: Path) -> int:
    """Return whose a folder is. Raises OSError, as for a link on the way that another user may have put there."""
    with opened_folder(folder) as opened:
        return os.fstat(opened).st_uid


def _is_launch(folder: Path) -> bool:
    owner = read_owner(folder)
    return owner is not None and owner.get("engine", "") is None and isinstance(owner.get("pid"), int)


def _read(folder: Path, programs: Sequence[Program]) -> Launch | None:
    """Read what a state folder says of a launch, None where the library counts all of these programs of it.

    Raises OSError, and ValueError.
    """
    owner = read_owner(folder) or {}
    limits = _limits_folder(folder, owner)
    if not _has_unseen(limits, [each.pid for each in programs]):
        return None
    launcher = identify(int(owner.get("pid", 0)))
    if launcher and (_folder_held_by(launcher.pid) != folder or not launcher.is_alive()):
        launcher = None  # it has ended before what it started
    parents = [Path(str(each)) for each in owner.get("parents") or ()]
    return Launch(
        launcher, printable(str(owner.get("user", ""))), limits,
        dict(limits_now(limits, quotas_from_json(str(owner.get("quota"))))),
        {called(each): dict(limits_now(each)) for each in parents if _may_join(each, folder)},
    )  # fmt: skip


def _has_unseen(limits: Path, pids: Sequence[int]) -> bool:
    """Whether the library does not count one of them. Raises OSError, and ValueError."""
    slots = frozenset[tuple[int, int]]()
    with suppress(OSError, BrokenUsageError):  # its user may remove it, too
        slots = read_counted(limits / "run" / "usage")
    return any((namespace_of(pid), pid_inside(pid)) not in slots and not is_ending(pid) for pid in pids)


def _limits_folder(folder: Path, owner: Mapping[str, Any]) -> Path:
    """Return the folder whose limits hold: a slice's that the launch has joined, which its user may."""
    slice_folder = Path(str(owner.get("slice") or folder))
    return slice_folder if _may_join(slice_folder, folder) else folder


def _may_join(share: Path, folder: Path) -> bool:
    """Whether a launch may be a part of a share: its own user wrote that it is. Raises OSError."""
    user = _user_of(folder)
    if user in (0, _user_of(share)):
        return True
    return any(each.folder == share and each.may_use(name_of(user)) for each in store.slices())


def _gather(folder: Path, launch: Launch, programs: Sequence[Program]) -> Contained:
    """Gather the processes of a launch in a cgroup of their own. Raises CgroupError."""
    own = [ProcessIdentity(each.pid, each.started_ticks, boot_id()) for each in programs]
    first = launch.launcher or own[0]
    cgroup = freezer.made_below(own[0].pid, f"{GATHERED[1:]}{folder.name}")
    if not own[0].is_alive():
        raise CgroupError(f"process {own[0].pid} has ended")  # another one's cgroup may be around it
    for _ in range(_PASSES):
        there = set(cgroup.pids())
        left = [each for each in {*own, *_descendants(first)} if each.pid not in there and each.is_alive()]
        for each in left:
            cgroup.take_in(each)
        if not left:
            break
    return Contained(
        str(first.pid), f"process {first.pid}", launch.user, launch.limits, cgroup, run_of(cgroup), launch.quotas,
        launch.limits.name if launch.limits != folder else "", False, launch.around, is_launch=True,
    )  # fmt: skip


def _descendants(first: ProcessIdentity) -> set[ProcessIdentity]:
    """Return all processes that descend from this very one."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        with suppress(OSError, ValueError):
            children.setdefault(read_stat(pid).parent, []).append(pid)
    found, left = set[ProcessIdentity](), [first]
    while left:
        parent = left.pop()
        new = {each for pid in children.get(parent.pid, ()) if (each := _child(pid, parent))} - found
        found |= new
        left += new
    return found


def _child(pid: int, parent: ProcessIdentity) -> ProcessIdentity | None:
    """Return the process of a number if it is a child of that very one: numbers may be other processes' by now."""
    with suppress(OSError, ValueError):
        stat = read_stat(pid)
        if stat.parent == parent.pid and not stat.has_ended and parent.is_alive():
            return ProcessIdentity(pid, stat.started_ticks, boot_id())
    return None
