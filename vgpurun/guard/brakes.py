"""How a container is stopped for a part of each period, so that it keeps to its share of a GPU's time."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Protocol

from vgpurun.errors import CgroupError
from vgpurun.guard.gpu_work import GpuWorkDuty, identities
from vgpurun.guard.snapshot import Contained, Snapshot
from vgpurun.guard.switches import Switches
from vgpurun.util.process_identity import ProcessIdentity

_INEXACT_RATIO = 0.3  # of NVML's second, which begins and ends somewhere in a period
_DOUBTED_S = 2.0
_HIDDEN = "its work cannot be taken off the GPU"
_COMES_BACK = "what was taken off the GPU comes back"


class Brake(Protocol):
    """Stops containers, and lets them go on."""

    period_s: float

    def follow(self, snapshot: Snapshot, restless: Collection[str]) -> None:
        """Follow the processes of stopped containers. `restless` are the containers whose processes come and go."""

    def watch(
        self, container: Contained, uuid: str, utilization: Mapping[int, float], thawed_ratio: float, now_s: float
    ) -> None:
        """Take what NVML says of its processes on a GPU, in percent, and for which part of that second it ran."""

    def stop(self, container: Contained) -> None:
        """Stop one. Raises CgroupError."""

    def go(self, container: Contained) -> None:
        """Let it go on. Raises CgroupError."""

    def is_stopped(self, container: Contained) -> bool:
        """Whether it is. Raises CgroupError."""

    def release(self, container: str) -> None:
        """Let it go on for good."""


class Freezer:
    """Stops all of their processes; what they have launched runs on."""

    period_s = 0.5  # NVML averages over a second, so a period must be a part of that

    def follow(self, snapshot: Snapshot, restless: Collection[str]) -> None:
        """Do nothing: a frozen cgroup freezes processes that are started in it."""

    def watch(
        self, container: Contained, uuid: str, utilization: Mapping[int, float], thawed_ratio: float, now_s: float
    ) -> None:
        """Do nothing: what is used by work from before a freeze is made up for."""

    def stop(self, container: Contained) -> None:
        """Freeze it. Raises CgroupError."""
        container.cgroup.freeze()

    def go(self, container: Contained) -> None:
        """Thaw it. Raises CgroupError."""
        container.cgroup.thaw()

    def is_stopped(self, container: Contained) -> bool:
        """Whether it is frozen. Raises CgroupError."""
        return container.cgroup.is_frozen()

    def release(self, container: str) -> None:
        """Do nothing: a verb of its own thaws it."""


class Switch:
    """Takes their work off the GPUs, in the middle of a kernel; their processes run on.

    Where that does not hold them, they are frozen as well: where channels are not found, or come back, and where
    processes come and go, since a new one has some time before it is found.
    """

    period_s = 0.1

    def __init__(self, switches: Switches, work: GpuWorkDuty, takes_all: bool) -> None:
        """`takes_all`: those that the library counts, too."""
        self._switches = switches
        self._work = work
        self._takes_all = takes_all
        self._freezer = Freezer()
        self._snapshot: Snapshot | None = None
        self._restless: Collection[str] = ()
        self._processes: dict[str, set[ProcessIdentity]] = {}  # by container: what has been stopped
        self._stopped: set[str] = set()
        self._frozen: set[str] = set()
        self._doubted_s: dict[tuple[str, str], float] = {}  # since when more of a GPU is used than can be
        self._untrusted: dict[str, str] = {}  # containers, and why they are frozen too

    def follow(self, snapshot: Snapshot, restless: Collection[str]) -> None:
        """Stop what has been started since then in containers that are stopped, and let go what is in them no more."""
        self._snapshot = snapshot
        self._restless = restless
        for id_ in self._processes.keys() & snapshot.containers.keys():
            container, before = snapshot.containers[id_], self._processes[id_]
            self._processes[id_] = self._processes_of(container)
            self._switches.put_back(before - self._processes[id_] - self._work.off)
            if id_ in self._stopped:  # it may have others by now, or have to be frozen
                with suppress(CgroupError):  # it ended just now
                    self.stop(container)

    def watch(
        self, container: Contained, uuid: str, utilization: Mapping[int, float], thawed_ratio: float, now_s: float
    ) -> None:
        """See whether its work stays off."""
        processes = self._processes.get(container.id, set())
        used_ratio = sum(utilization.get(each.pid, 0.0) for each in processes) / 100
        if used_ratio <= thawed_ratio + _INEXACT_RATIO:
            self._doubted_s.pop((container.id, uuid), None)
        elif now_s - self._doubted_s.setdefault((container.id, uuid), now_s) >= _DOUBTED_S:
            self._untrusted[container.id] = _COMES_BACK

    def stop(self, container: Contained) -> None:
        """Take its work off the GPUs, and freeze it too where that does not do. Raises CgroupError."""
        if container.id not in self._processes:
            self._processes[container.id] = self._processes_of(container)
        processes = self._processes[container.id]
        self._stopped.add(container.id)
        self._follow_trouble(container, self._switches.take_off(processes))
        if container.id in self._untrusted or container.id in self._restless:
            self._frozen.add(container.id)
            self._freezer.stop(container)

    def go(self, container: Contained) -> None:
        """Put it back. Raises CgroupError."""
        self._stopped.discard(container.id)
        self._switches.let_run(self._processes.get(container.id, set()) - self._work.off)
        if container.id in self._frozen:
            self._freezer.go(container)
            self._frozen.discard(container.id)

    def is_stopped(self, container: Contained) -> bool:
        """Whether it is."""
        return container.id in self._stopped

    def release(self, container: str) -> None:
        """Put back what is off of it."""
        self._stopped.discard(container)
        self._frozen.discard(container)
        self._doubted_s = {key: since_s for key, since_s in self._doubted_s.items() if key[0] != container}
        self._untrusted.pop(container, None)
        self._switches.put_back(self._processes.pop(container, set()) - self._work.off)

    def _processes_of(self, container: Contained) -> set[ProcessIdentity]:
        """Return its processes on GPUs that are to be held."""
        snapshot = self._snapshot
        assert snapshot is not None
        pids: set[int] = set()
        for uuid in snapshot.held:
            pids.update(
                snapshot.pids_of(container.id, uuid) if self._takes_all else snapshot.unseen_of(container, uuid)
            )
        return set(identities(snapshot.programs[pid] for pid in pids))

    def _follow_trouble(self, container: Contained, are_off: bool) -> None:
        """Note why the container is frozen too, if it is."""
        why = self._untrusted.get(container.id, "")
        if why in ("", _HIDDEN):
            why = "" if are_off else _HIDDEN
        if why:
            self._untrusted[container.id] = why
        else:
            self._untrusted.pop(container.id, None)
        said = f"container {container.name} is frozen and thawed in turn: {why}" if why else ""
        self._switches.note(f"brake of {container.id}", said)
