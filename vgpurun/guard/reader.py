"""Looks at the GPUs for the guard: NVML says what each process holds, /proc whose it is, the engine which containers
there are. Anything that seldom changes is read seldom, since this goes on twice a second for ever.
"""

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeAlias

from vgpurun.guard.containers import Containers
from vgpurun.guard.counting import Counting
from vgpurun.guard.holdings import Holdings
from vgpurun.guard.launches import Launches
from vgpurun.guard.listing import Listing
from vgpurun.guard.membership import Membership
from vgpurun.guard.processes import is_ending
from vgpurun.guard.programs import Programs
from vgpurun.guard.snapshot import Snapshot, by_container
from vgpurun.inventory.guarded import Stopped

Held: TypeAlias = Mapping[str, Mapping[int, int]]
Pids: TypeAlias = Mapping[tuple[str, str], Sequence[int]]


class GuardReader:
    """Looks again and again. `note` hears once of each trouble, and once of its end."""

    def __init__(
        self, stopped: Mapping[str, Stopped], note: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        self._stopped = stopped
        self._clock = clock
        self._holdings = Holdings(note, clock)
        self._listing = Listing(note)
        self._programs = Programs(Membership(self._listing))
        self._containers = Containers(self._listing, self._programs, stopped)
        self._launches = Launches(clock, note)
        self._counting = Counting(self._programs, note)
        self._grouped: tuple[object, tuple[Held, Pids]] | None = None  # and what it follows from

    def look(self) -> Snapshot | None:
        """Return what there is now, or None where NVML does not answer.

        Before the engine first has, as where none runs, there are launches and slices, and nobody's container.
        """
        now_s = self._clock()
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        held = self._holdings.read(now_s)
        if held is None:
            return None
        pids = {pid for by_pid in held.values() for pid in by_pid}
        self._counting.begin_look(pids, now_s)
        self._programs.keep(pids)
        self._list_containers(now_s)
        launches = self._launches.read(self._programs)
        holding, pids_of = self._group(held)
        return Snapshot(
            now_s, self._holdings.gpus, holding, self._programs.by_pid, {**self._containers.read(), **launches},
            self._counting.counted_by,
            self._holdings.utilization, is_ending, self._counting.is_counted_elsewhere, pids_of,
            boot_s, {}, self._listing.has_answered,
        )  # fmt: skip

    def _group(self, held: Held) -> tuple[Held, Pids]:
        """Return what is held, and the processes by container, which are mostly as they were.

        A process that is gone by now holds nothing that anybody could take from it.
        """
        programs = self._programs.by_pid
        if self._grouped is None or self._grouped[0] != (held, programs):
            alive = {uuid: {pid: size for pid, size in by_pid.items() if programs[pid].started_ticks}
                     for uuid, by_pid in held.items()}  # fmt: skip
            self._grouped = (held, programs), (alive, by_container(alive, programs))
        return self._grouped[1]

    @property
    def pids(self) -> Set[int]:
        """The processes that held memory of a GPU at the last look."""
        return self._programs.by_pid.keys()

    def close(self) -> None:
        """Let go of all that it has open."""
        for each in (self._holdings, self._programs, self._containers, self._launches, self._counting):
            each.close()

    def _list_containers(self, now_s: float) -> None:
        asked_of = self._listing.update(
            now_s, self._programs.by_pid.values(), self._containers.in_use, is_hurried=bool(self._stopped)
        )
        if asked_of is not None:
            self._containers.forget_unlisted()
            self._programs.look_again(asked_of)


def clock() -> float:
    """Return monotonic time in seconds; it does not advance while the host is suspended."""
    return time.monotonic()
