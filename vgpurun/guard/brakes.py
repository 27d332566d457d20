"""How a container is stopped for a part of each period, so that it keeps to its share of a GPU's time."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set

from vgpurun.errors import CgroupError
from vgpurun.guard.gpu_work import GpuWorkDuty, identities
from vgpurun.guard.snapshot import Contained, Snapshot
from vgpurun.guard.switches import Switches
from vgpurun.util.process_identity import ProcessIdentity

_INEXACT_RATIO = 0.3  # of NVML's second, which begins and ends somewhere in a period
_DOUBTED_S = 2.0
_HIDDEN = "its work cannot be taken off the GPU"
_COMES_BACK = "what was taken off the GPU comes back"


class Freezer:
    """Stops all of their processes; what they have launched runs on."""

    period_s = 0.5  # NVML averages over a second, so a period must be a part of that

    def follow(self, snapshot: Snapshot, restless: Collection[str]) -> None:
        """Follow the processes of stopped containers. `restless` are the containers whose processes come and go.

        There is nothing to do: a frozen cgroup freezes processes that are started in it.
        """

    def watch(
        self, container: Contained, uuid: str, utilization: Mapping[int, float], thawed_ratio: float, now_s: float
    ) -> None:
        """Take what NVML says of its processes on a GPU, in percent, and for which part of that second it ran.

        There is nothing to do: what is used by work from before a freeze is made up for.
        """

    def stop(self, container: Contained) -> None:
        """Freeze it. Raises CgroupError."""
        container.cgroup.freeze()

    def go(self, container: Contained) -> None:
        """Thaw it. Raises CgroupError."""
        container.cgroup.thaw()

    def turn(self, stopping: Sequence[Contained], going: Sequence[Contained]) -> Mapping[str, CgroupError]:
        """Freeze and thaw each."""
        return _troubles(self.stop, stopping) | _troubles(self.go, going)

    def is_stopped(self, container: Contained) -> bool:
        """Whether it is frozen. Raises CgroupError."""
        return container.cgroup.is_frozen()

    def freezes(self, container: Contained) -> bool:
        """Whether it is: always."""
        del container
        return True

    def release(self, container: str) -> None:
        """Let it go on for good. There is nothing to do: a verb of its own thaws it."""


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
        known, gone = self._processes.keys() & snapshot.containers.keys(), set[ProcessIdentity]()
        for id_ in known:
            before = self._processes[id_]
            self._processes[id_] = self._processes_of(snapshot.containers[id_])
            gone |= before - self._processes[id_]
        self._switches.put_back(gone - self._work.off)
        # They may have others by now, or have to be frozen; one that cannot be has ended just now.
        self.turn([snapshot.containers[id_] for id_ in known & self._stopped], ())

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
        for trouble in self.turn([container], ()).values():
            raise trouble

    def go(self, container: Contained) -> None:
        """Put it back. Raises CgroupError."""
        for trouble in self.turn((), [container]).values():
            raise trouble

    def turn(self, stopping: Sequence[Contained], going: Sequence[Contained]) -> Mapping[str, CgroupError]:
        """Ask the keeper once for all that is to be off, and once for what is to be on."""
        for each in stopping:
            if each.id not in self._processes:
                self._processes[each.id] = self._processes_of(each)
        self._stopped |= {each.id for each in stopping}
        off = self._switches.take_off(self._all_of(stopping)) if stopping else set()
        troubles = _troubles(lambda each: self._see_off(each, off), stopping)
        self._stopped -= {each.id for each in going}
        if going:
            self._switches.let_run(self._all_of(going) - self._work.off)
        return troubles | _troubles(self._thaw, going)

    def _see_off(self, container: Contained, off: Set[ProcessIdentity]) -> None:
        """Freeze it too if its work is not among what is off, or may not stay so. Raises CgroupError."""
        self._follow_trouble(container, self._processes[container.id] <= off)
        if self.freezes(container):
            self._frozen.add(container.id)
            self._freezer.stop(container)

    def _thaw(self, container: Contained) -> None:
        """Raises CgroupError."""
        if container.id in self._frozen:
            self._freezer.go(container)
            self._frozen.discard(container.id)

    def _all_of(self, containers: Sequence[Contained]) -> set[ProcessIdentity]:
        return {process for each in containers for process in self._processes.get(each.id, ())}

    def is_stopped(self, container: Contained) -> bool:
        """Whether it is."""
        return container.id in self._stopped

    def freezes(self, container: Contained) -> bool:
        """Whether it is: its processes are known by more than a path."""
        return container.id in self._frozen or container.id in self._untrusted or container.id in self._restless

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


def _troubles(act: Callable[[Contained], None], containers: Sequence[Contained]) -> dict[str, CgroupError]:
    """Do it to each, whatever becomes of the others; return what went wrong."""
    found = {}
    for each in containers:
        try:
            act(each)
        except CgroupError as error:
            found[each.id] = error
    return found


Brake = Freezer | Switch
