"""The duty that gives programs outside vgpurun the time slices that the administrator asks for; no others are touched.

A slice is how long a process has a GPU while others want it too, so that it makes a weight: of one that has low
priority it is so short that others hardly wait.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vgpurun.guard.daemon import Actions, Duty
from vgpurun.guard.gpu_work import identities
from vgpurun.guard.snapshot import Program, Snapshot
from vgpurun.guard.switches import Switches
from vgpurun.host import freezer
from vgpurun.util.process_identity import ProcessIdentity

OUTSIDE_SLICES = "outside slices"
_AGAIN_S = 5.0  # for contexts that are new since


class Slices(NamedTuple):
    """In microseconds, by user, and by path of a cgroup, for what is in there and below."""

    users: Mapping[str, int]
    cgroups: Mapping[str, int]


class OutsideSlicesDuty(Duty):
    """Sets the slices again and again, and what it was before where a program is no stranger any more."""

    name = OUTSIDE_SLICES

    def __init__(self, memory: dict[str, Any], slices: Slices, switches: Switches) -> None:
        super().__init__(memory)
        self._slices = slices
        self._switches = switches
        self._known: Mapping[ProcessIdentity, int] = {}
        self._set_s = float("-inf")

    def look(self, snapshot: Snapshot) -> Actions:
        """Set the slices of what is new at once; it needs no action of its own."""
        strangers = [each for each in snapshot.programs.values() if each.container == ""] if any(self._slices) else []
        if {*identities(strangers)} == self._known.keys() and snapshot.now_s < self._set_s + _AGAIN_S:
            return
        self._set_s = snapshot.now_s
        self._known = {identity: self._slice_us(snapshot, each)
                       for identity, each in zip(identities(strangers), strangers, strict=True)}  # fmt: skip
        self._switches.set_slices({each: slice_us for each, slice_us in self._known.items() if slice_us})
        yield from ()

    def _slice_us(self, snapshot: Snapshot, program: Program) -> int:
        """Return the shortest that is asked for, 0 for none; in a container of others users have any name."""
        found = [] if program.foreign else [self._slices.users.get(program.user, 0)]
        try:
            paths = {*freezer.paths_of(program.pid).values()} if self._slices.cgroups else set()
        except OSError:
            paths = set()  # it has ended
        found += [slice_us for place, slice_us in self._slices.cgroups.items() if _is_in(place, paths)]
        wanted = min(filter(None, found), default=0)
        return wanted if wanted and not snapshot.is_counted_elsewhere(program.pid) else 0


def _is_in(place: str, paths: set[str]) -> bool:
    return any(f"{path}/".startswith(f"{place.rstrip('/')}/") for path in paths)
