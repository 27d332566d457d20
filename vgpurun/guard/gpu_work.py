"""The duty that takes the work of stopped containers off their GPUs: what a freeze leaves there would run on.

That is of those that the guard has frozen, and those whose work on the GPU is paused (`vgpurun pause --gpu`). A program
that is suspended is left alone, since its work has to end first.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vgpurun import abi
from vgpurun.guard.daemon import Actions, Duty, Hand
from vgpurun.guard.hands import freeze, thaw
from vgpurun.guard.snapshot import Contained, Program, Snapshot
from vgpurun.guard.state import State
from vgpurun.guard.switches import Switches
from vgpurun.inventory.guarded import FREEZE, THAW, Action
from vgpurun.limits.quota import Quota
from vgpurun.util.process_identity import ProcessIdentity, boot_id

GPU_WORK = "gpu work"


class GpuWorkDuty(Duty):
    """Keeps the work of stopped containers off their GPUs, which changes nothing else of theirs."""

    name = GPU_WORK

    def __init__(self, memory: dict[str, Any], state: State, switches: Switches) -> None:
        super().__init__(memory)
        self._state = state
        self._switches = switches
        self._programs: dict[str, list[Program]] = {}  # by container, as they were last seen
        self.off: set[ProcessIdentity] = set()

    def look(self, snapshot: Snapshot) -> Actions:
        """Switch what is to be switched; it needs no action of its own."""
        self._programs.clear()
        for each in snapshot.programs.values():
            if each.container:
                self._programs.setdefault(each.container, []).append(each)
        stopped = {id_ for id_, each in self._state.stopped.items() if each.verb == FREEZE}
        stopped |= {id_ for id_, each in snapshot.containers.items() if is_paused(each)}
        before, self.off = self.off, {each for id_ in stopped for each in self.processes_of(id_)}
        self._switches.put_back(before - self.off)
        self._switches.take_off(self.off)
        yield from ()

    def processes_of(self, container: str) -> Iterable[ProcessIdentity]:
        """Return the processes of a container that were on a GPU at the last look."""
        return identities(self._programs.get(container, ()))

    def freeze(self, action: Action) -> None:
        """Take a container's work off its GPUs, as far as that can be done, and freeze it. Raises CgroupError."""
        processes = set(self.processes_of(action.container))
        self.off |= processes
        self._switches.take_off(processes)
        freeze(action)

    def thaw(self, action: Action) -> None:
        """Put it back, and let the container go on. Raises CgroupError."""
        processes = set(self.processes_of(action.container))
        self.off -= processes
        self._switches.put_back(processes)
        thaw(action)

    @property
    def hands(self) -> Mapping[str, Hand]:
        """Freezing and thawing, which include the work on the GPU."""
        return {FREEZE: self.freeze, THAW: self.thaw}


def identities(programs: Iterable[Program]) -> Iterator[ProcessIdentity]:
    """Yield the processes that programs are."""
    return (ProcessIdentity(each.pid, each.started_ticks, boot_id()) for each in programs)


def is_paused(container: Contained) -> bool:
    """Whether its work on the GPU is paused, or that of a share that it is a part of, and it is not on its way away."""
    quotas = [*_all(container)]
    return any(each.paused for each in quotas) and all(each.suspended == abi.NOT_SUSPENDED for each in quotas)


def _all(container: Contained) -> Iterator[Quota]:
    yield from container.quotas.values()
    for around in container.around.values():
        yield from around.values()
