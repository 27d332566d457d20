"""Asks usage files which processes the library counts: those of containers, and those that processes name."""

from collections.abc import Callable, Set
from contextlib import suppress

from vgpurun.guard.processes import is_counted_elsewhere, namespace_of, pid_inside
from vgpurun.guard.programs import Programs
from vgpurun.guard.snapshot import Contained
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.util.background import Background

_FILE_TAKES_S = 0.5  # at most, to read a usage file: it may be on a server that does not answer


class Counting:
    """The counts of one look after the other. `note` hears of each file that does not answer, and of its end."""

    def __init__(self, programs: Programs, note: Callable[[str, str], None]) -> None:
        self._programs = programs
        self._note = note
        self._counted: dict[str, frozenset[int]] = {}  # of a container, at this look
        self._asking: dict[int, Background[bool]] = {}  # whether the library counts a process

    def begin_look(self, pids: Set[int]) -> None:
        """Forget what was counted before, and all processes but these."""
        self._counted.clear()
        self._asking = {pid: each for pid, each in self._asking.items() if pid in pids}

    def counted_by(self, container: Contained) -> frozenset[int] | None:
        """Return those that the library counts now: a program may replace itself by one past the library."""
        if container.id not in self._counted:
            self._counted[container.id] = self._count(container)
        return self._counted[container.id]

    def is_counted_elsewhere(self, pid: int) -> bool:
        """Ask in a thread of its own: a process names its usage file itself. Where no answer comes it is let be."""
        asking = self._asking.pop(pid, None) or Background(lambda: is_counted_elsewhere(pid))
        if asking.has_ended(_FILE_TAKES_S / (1 + len(self._asking)) ** 2):  # many that hang hold nobody up
            self._note(f"file of {pid}", "")
            return asking.result()
        self._asking[pid] = asking
        self._note(f"file of {pid}", f"process {pid} is left alone: its usage file does not answer")
        return True

    def _count(self, container: Contained) -> frozenset[int]:
        try:
            slots = read_counted(container.folder / "run" / "usage")
        except (OSError, BrokenUsageError):
            slots = frozenset()  # the library counts nobody in a file that a program of the container has broken
        counted = set()
        for pid in self._programs.of(container.id):
            with suppress(OSError, ValueError):
                if (namespace_of(pid), pid_inside(pid)) in slots:
                    counted.add(pid)
        return frozenset(counted)
