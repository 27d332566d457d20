"""Reads the limits and the cgroup of each container whose processes hold memory of a GPU, or that stands still."""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vgpurun.guard.listing import Listing
from vgpurun.guard.programs import Programs
from vgpurun.guard.snapshot import Contained, Program
from vgpurun.host import freezer
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.inventory.guarded import Stopped
from vgpurun.inventory.reservations import limits_now, quotas_now
from vgpurun.storage.state import SLICES

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer


class _Known(NamedTuple):
    """A container as it was found, and what tells that it is another now."""

    listed: "VgpurunContainer"
    limits: frozenset[int]  # the watches of the folders that have its limits, and those around it
    contained: Contained


class Containers:
    """The containers; their limits may be changed at any time, of which the kernel tells."""

    def __init__(self, listing: Listing, programs: Programs, stopped: Mapping[str, Stopped]) -> None:
        self._listing = listing
        self._programs = programs
        self._stopped = stopped
        self._cgroups: dict[str, tuple[Cgroup, str, Program | None]] = {}  # and whose it is: while that lives it stays
        self._known: dict[str, _Known] = {}
        self._limits = FolderWatch()
        self._found: tuple[object, dict[str, Contained]] | None = None  # and what it follows from

    @property
    def in_use(self) -> Set[str]:
        """The containers that the guard has to know."""
        return self._programs.containers | self._stopped.keys()

    def forget_unlisted(self) -> None:
        """Forget those that are not listed any more."""
        listed = self._listing.containers
        self._cgroups = {id_: each for id_, each in self._cgroups.items() if id_ in listed}
        self._known = {id_: each for id_, each in self._known.items() if id_ in listed}
        self._found = None

    def read(self) -> dict[str, Contained]:
        """Return those that are in use, as they are now."""
        if changed := self._limits.changed():
            self._known = {id_: each for id_, each in self._known.items() if each.limits.isdisjoint(changed)}
        if self._found and self._found[0] == (self._programs.by_pid, self._known):
            return self._found[1]
        known = {
            id_: self._read_one(self._listing.containers[id_]) for id_ in self.in_use & self._listing.containers.keys()
        }
        found = {id_: each for id_, each in known.items() if each}
        is_known = not self._stopped and known.keys() <= self._known.keys()
        self._found = ((self._programs.by_pid, dict(self._known)), found) if is_known else None
        return found

    def close(self) -> None:
        """Watch no folder any more."""
        self._limits.close()

    def _read_one(self, listed: "VgpurunContainer") -> Contained | None:
        cgroup = self._cgroup_of(listed.id)
        known = self._known.pop(listed.id, None)
        if cgroup is None:
            return None
        if known is None or (known.listed, known.contained.run) != (listed, cgroup[1]):
            parents = [Path(each) for each in listed.record.parents]
            folders = [listed.limits_folder, *parents]
            limits = frozenset(self._limits.add(each / "etc") for each in folders)  # before they are read
            contained = Contained(
                listed.id, listed.name, listed.user, listed.limits_folder, *cgroup, dict(quotas_now(listed)),
                "" if listed.is_part else listed.slice_name, listed.status == "paused",
                {called(each): dict(limits_now(each)) for each in parents},
            )  # fmt: skip
            known = _Known(listed, limits, contained)
        if NOT_WATCHED not in known.limits:
            self._known[listed.id] = known
        return known.contained

    def _cgroup_of(self, container: str) -> tuple[Cgroup, str] | None:
        known = self._cgroups.get(container)
        if known is not None:
            cgroup, run, by = known
            if (by and self._programs.by_pid.get(by.pid) is by) or run_of(cgroup) == run:
                return cgroup, run
        now: Cgroup | None = None
        of_container = self._programs.of(container).values()
        by = next((each for each in of_container if (now := freezer.find(each.pid, container))), None)
        if now is None and container in self._stopped:
            now = self._stopped[container].cgroup
        run = run_of(now) if now else ""
        if now is None or not run:
            return None
        self._cgroups[container] = now, run, by
        return now, run


def called(share: Path) -> str:
    """Return how a share is called by what is in it."""
    return f"slice {share.name}" if share.parent.name == SLICES else f"share {share}"
