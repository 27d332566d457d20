"""Asks usage files which processes the library counts: those of containers, and those that processes name."""

from collections.abc import Callable, Set
from contextlib import suppress

from vgpurun.guard.processes import is_counted_elsewhere, namespace_of
from vgpurun.guard.programs import Programs
from vgpurun.guard.questions import Questions
from vgpurun.guard.snapshot import Contained, Program
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.util.process_identity import pid_inside


class Counting:
    """The counts of one look after the other. `note` hears of each file that does not answer, and of its end."""

    def __init__(self, programs: Programs, note: Callable[[str, str], None]) -> None:
        self._programs = programs
        self._counted: dict[str, frozenset[int]] = {}  # of a container, at this look
        self._inside: dict[tuple[int, int], tuple[int, int]] = {}  # a process's PID namespace, and its number there
        self._elsewhere: Questions[int, bool] = Questions(note, "file of")
        self._files: Questions[str, frozenset[tuple[int, int]]] = Questions(note, "usage of")  # launches, by id

    def begin_look(self, pids: Set[int]) -> None:
        """Forget what was counted before, and all processes but these."""
        self._counted.clear()
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

    def _count(self, container: Contained) -> frozenset[int]:
        slots = self._slots(container)
        counted = set()
        for pid, program in self._programs.of(container.id).items():
            with suppress(OSError, ValueError):
                if self._slot_of(program) in slots:
                    counted.add(pid)
        return frozenset(counted)

    def _slot_of(self, program: Program) -> tuple[int, int]:
        """Return how a usage file names a process, which stays so for its life. Raises OSError, and ValueError."""
        key = program.pid, program.started_ticks
        if key not in self._inside:
            self._inside[key] = namespace_of(program.pid), pid_inside(program.pid)
        return self._inside[key]

    def _slots(self, container: Contained) -> frozenset[tuple[int, int]]:
        """Return what a usage file says; where it is broken, or a launch's does not answer, that counts nobody."""
        file = container.folder / "run" / "usage"
        trouble = f"the programs of {container.name} count as not seen: their usage file does not answer"
        with suppress(OSError, BrokenUsageError):
            if container.is_launch:
                return self._files.ask(container.id, lambda: read_counted(file), frozenset(), trouble)
            return read_counted(file)
        return frozenset()
