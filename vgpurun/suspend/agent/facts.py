"""Reads the folders of targets: their limits, how they are suspended, --idle, and what their users ask for."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun import abi
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.limits import limits_file
from vgpurun.limits.idle import IdlePolicy, read_idle
from vgpurun.limits.quota import Quota
from vgpurun.storage.unchanged import Unchanged
from vgpurun.suspend import record, requests
from vgpurun.suspend.record import Record
from vgpurun.suspend.requests import Request
from vgpurun.suspend.targets import Target


class Marks(NamedTuple):
    """A target's GPUs, whether it takes turns, and whether the limits say that it is suspended, or on its way."""

    uuids: frozenset[str] = frozenset()
    takes_turns: bool = False
    is_marked: bool = False


class Files(NamedTuple):
    """The content of a state folder's files: how its target is suspended, its --idle, and what its user asks for."""

    found: Record | None = None
    policy: IdlePolicy | None = None
    request: Request | None = None


class Fact(NamedTuple):
    """A target, and what was read in its folders."""

    target: Target
    marks: Marks
    files: Files

    @property
    def is_in_question(self) -> bool:
        """Whether something may have to be done about it; for most there is nothing."""
        return any(self.files) or self.marks.is_marked

    @property
    def is_noted(self) -> bool:
        """Whether its use of GPUs is to be noted: for --idle, or for its turns."""
        return self.marks.takes_turns or self.files.policy is not None


class Facts:
    """Reads the files of one target, or those of all; what has not changed is read no more."""

    def __init__(self) -> None:
        self._marks = Unchanged("etc/limits", _marks_in, Marks())
        # These files come, change and go by a change of the folder, so that one question tells of both.
        self._files = Unchanged(".", _files_in, Files())
        self._changes = FolderWatch()
        self._found: list[Fact] = []
        self._found_of: Sequence[Target] | None = None  # None: look again

    def marks(self, target: Target) -> Marks:
        """Return what is in a target's limits now."""
        return self._marks(target.limits_folder)

    def files(self, target: Target) -> Files:
        """Return what is in the files of a target's state folder now."""
        return self._files(target.limits_folder)

    def of(self, targets: Sequence[Target]) -> Sequence[Fact]:
        """Return what is in the folders of each of these."""
        if self._changes.changed() or self._found_of is not targets:
            folders = [folder for each in targets for folder in (each.limits_folder, each.limits_folder / "etc")]
            are_watched = NOT_WATCHED not in [self._changes.add(folder) for folder in folders]  # before they are read
            self._found = [Fact(each, self.marks(each), self.files(each)) for each in targets]
            self._found_of = targets if are_watched else None
        return self._found

    def close(self) -> None:
        """Watch no folder any more."""
        self._changes.close()


def _marks_in(folder: Path) -> Marks:
    limits: Sequence[tuple[str, Quota]] = ()
    with suppress(OSError):
        limits = limits_file.read_limits(folder / "etc" / "limits") or ()
    return Marks(
        frozenset(uuid for uuid, _ in limits),
        any(quota.takes_turns for _, quota in limits),
        any(quota.suspended != abi.NOT_SUSPENDED for _, quota in limits),
    )


def _files_in(folder: Path) -> Files:
    found = None
    with suppress(OSError):
        found = record.read(folder)
    return Files(found, read_idle(folder), requests.read_request(folder))
