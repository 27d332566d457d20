"""Looks at the GPUs for the guard: NVML says what each process holds, /proc whose it is, the engine which containers
there are. Anything that seldom changes is read seldom, since this goes on twice a second for ever.
"""

import time
from collections.abc import Callable, Mapping

from vgpurun.guard.containers import Containers
from vgpurun.guard.counting import Counting
from vgpurun.guard.holdings import Holdings
from vgpurun.guard.listing import Listing
from vgpurun.guard.membership import Membership
from vgpurun.guard.processes import is_ending
from vgpurun.guard.programs import Programs
from vgpurun.guard.snapshot import Snapshot, by_container
from vgpurun.inventory.guarded import Stopped


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
        self._counting = Counting(self._programs, note)

    def look(self) -> Snapshot | None:
        """Return what there is now, or None where nothing is known.

        That is where NVML does not answer, and before the engine first has: nobody's container could be named, and
        what is remembered of them would be taken for over.
        """
        now_s = self._clock()
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        held = self._holdings.read(now_s)
        if held is None:
            return None
        pids = {pid for by_pid in held.values() for pid in by_pid}
        self._counting.begin_look(pids)
        self._programs.keep(pids)
        self._list_containers(now_s)
        if not self._listing.has_answered:
            return None
        programs = self._programs.by_pid
        # A process that is gone by now holds nothing that anybody could take from it.
        held = {uuid: {pid: size for pid, size in by_pid.items() if programs[pid].started_ticks}
                for uuid, by_pid in held.items()}  # fmt: skip
        return Snapshot(
            now_s, self._holdings.gpus, held, programs, self._containers.read(), self._counting.counted_by,
            self._holdings.utilization, is_ending, self._counting.is_counted_elsewhere, by_container(held, programs),
            boot_s,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of all that it has open."""
        for each in (self._holdings, self._programs, self._containers):
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
