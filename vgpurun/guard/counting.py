"""Asks usage files which processes the library counts: those of containers, and those that processes name."""

from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from vgpurun.guard.processes import is_counted_elsewhere, namespace_of
from vgpurun.guard.programs import Programs
from vgpurun.guard.questions import Questions
from vgpurun.guard.snapshot import Contained, Program
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.util.process_identity import pid_inside

_NOBODY_FOR_S = 10.0  # after which a usage file is read again: the kernel does not tell of writes through a mapping

Slots: TypeAlias = frozenset[tuple[int, int]]


class _Nobody(NamedTuple):
    """A container none of whose processes were counted: which, by the watch of its usage file's folder, and when.

    They stay so until the file changes. Those that are counted may become programs past the library at any time.
    """

    programs: frozenset[Program]
    watch: int
    read_s: float


class Counting:
    """The counts of one look after the other. `note` hears of each file that does not answer, and of its end."""

    def __init__(self, programs: Programs, note: Callable[[str, str], None]) -> None:
        self._programs = programs
        self._counted: dict[str, frozenset[int]] = {}  # of a container, at this look
        self._inside: dict[tuple[int, int], tuple[int, int]] = {}  # a process's PID namespace, and its number there
        self._elsewhere: Questions[int, bool] = Questions(note, "file of")
        self._files: Questions[str, tuple[int, Slots]] = Questions(note, "usage of")  # launches, by id
        self._changes = FolderWatch()
        self._nobody: dict[str, _Nobody] = {}
        self._now_s = float("-inf")  # of this look

    def begin_look(self, pids: Set[int], now_s: float) -> None:
        """Forget what was counted before, and all processes but these."""
        self._counted.clear()
        self._now_s = now_s
        changed = self._changes.changed()
        self._nobody = {
            id_: each for id_, each in self._nobody.items()
            if each.watch not in changed and now_s - each.read_s < _NOBODY_FOR_S
        }  # fmt: skip
        if self._inside:
            self._inside = {key: each for key, each in self._inside.items() if key[0] in pids}
        self._elsewhere.keep(pids)
        self._files.keep(self._programs.containers)

    def counted_by(self, container: Contained) -> frozenset[int] | None:
        """Return those that the library counts now: a program may replace itself by one past the library."""
        if container.id not in self._counted:
            self._counted[container.id] = self._count(container)
        return self._counted[container.id]

    def is_counted_elsewhere(self, pid: int) -> bool:
        """Ask in a thread of its own: a process names its usage file itself. Where no answer comes it is let be."""
        trouble = f"process {pid} is left alone: its usage file does not answer"
        return self._elsewhere.ask(pid, lambda: is_counted_elsewhere(pid), True, trouble)

    def close(self) -> None:
        """Watch no folder any more."""
        self._changes.close()

    def _count(self, container: Contained) -> frozenset[int]:
        programs = frozenset(self._programs.of(container.id).values())
        known = self._nobody.pop(container.id, None)
        if known and known.programs == programs:
            self._nobody[container.id] = known
            return frozenset()
        watch, slots = self._slots(container)
        counted = set()
        for program in programs:
            with suppress(OSError, ValueError):
                if self._slot_of(program) in slots:
                    counted.add(program.pid)
        if not counted and watch != NOT_WATCHED:
            self._nobody[container.id] = _Nobody(programs, watch, self._now_s)
        return frozenset(counted)

    def _slot_of(self, program: Program) -> tuple[int, int]:
        """Return how a usage file names a process, which stays so for its life. Raises OSError, and ValueError."""
        key = program.pid, program.started_ticks
        if key not in self._inside:
            self._inside[key] = namespace_of(program.pid), pid_inside(program.pid)
        return self._inside[key]

    def _slots(self, container: Contained) -> tuple[int, Slots]:
        """Return what a usage file says; where it is broken, or a launch's does not answer, that counts nobody."""
        folder = container.folder / "run"
        trouble = f"the programs of {container.name} count as not seen: their usage file does not answer"
        if container.is_launch:
            return self._files.ask(container.id, lambda: self._read(folder), (NOT_WATCHED, frozenset()), trouble)
        return self._read(folder)

    def _read(self, folder: Path) -> tuple[int, Slots]:
        watch = self._changes.add(folder, is_once=True)  # before it is read
        with suppress(OSError, BrokenUsageError):
            return watch, read_counted(folder / "usage")
        return watch, frozenset()
