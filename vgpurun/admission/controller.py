"""Admits a launch when there is room for it, and keeps other launches from looking at the GPUs until it is done.

A launch has taken its share once its container, or the state folder of a local process, exists: from then on other
launches see it among the holders. Then it looks again, since launches may hold different locks: one may have run out
of patience, or have another /tmp, and `docker start` takes none. Of two that look after they have taken their shares,
at least one sees the other. So nothing is reserved twice, whatever becomes of the lock.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from vgpurun.admission.capacity import GpuCapacity, capacities
from vgpurun.admission.grants import Grant
from vgpurun.admission.lock import admission_lock
from vgpurun.admission.placement import Placement, place
from vgpurun.admission.request import Request, candidates
from vgpurun.admission.waiting import Line
from vgpurun.errors import NoRoomError
from vgpurun.host import gpus as devices
from vgpurun.host.gpus import Gpu
from vgpurun.inventory.held import held_by
from vgpurun.inventory.reservations import all_holders
from vgpurun.limits import quota
from vgpurun.limits.policies import SmPolicy

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine


_MAKES_WAY_IN_S = 30.0  # the guard looks every second; it may have to wait for work in flight, and copies memory


class AdmissionController(Protocol):
    """Lets a launch in: an Admission where there is room for it, a Joining into a slice, a Nesting within a share."""

    def look(self) -> Placement:
        """Return where the launch would go now."""

    def granted(self) -> AbstractContextManager[Placement]:
        """Yield where the launch goes, which has to take its share before this ends."""

    def confirm(self, taken: str) -> None:
        """Raise NoRoomError where the launch has to give back what it has taken: `taken` is its id."""


class Admission:
    """A launch that asks to be let in. `wait_s`: how long it waits for room, 0 for not at all.

    `preempts_idle`: without `wait_s`, it waits for as long as those that are idle take to make way.
    `in_place_of`: the id of a container or slice that this is about to change; what it holds does not count.
    """

    def __init__(
        self,
        request: Request,
        gpus: Sequence[Gpu],
        grant: Grant,
        engine: "Engine | None",
        wait_s: float,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        in_place_of: str = "",
        preempts_idle: bool = False,
    ) -> None:
        self.request = request
        self.gpus = gpus
        self.grant = grant
        self.engine = engine
        self.wait_s = wait_s
        self.say = say
        self.warn = warn
        self.in_place_of = in_place_of
        self.preempts_idle = preempts_idle
        self._placement: Placement | None = None

    def check(self) -> None:
        """Raise what place() would raise on an empty host."""
        place(self.request, capacities(self.gpus, None, []), self.grant)

    def look(self) -> Placement:
        """Return where the launch would go now.

        Raises NoRoomError, EngineError, and what place() raises for a launch that nothing will ever make room for.
        """
        found = capacities(self.gpus, devices.read_use(self.gpus), all_holders(self.engine))
        own = held_by(self.in_place_of, self.gpus) if self.in_place_of else {}
        others = [each.without(self.in_place_of, own.get(each.gpu.uuid, 0)) for each in found]
        placement = place(self.request, others, self.grant)
        for each in placement.lowered:
            self.say(each)
        for remark in dict.fromkeys(filter(None, self._remarks(placement, others))):
            self.warn(remark)
        return placement

    def _remarks(self, placement: Placement, others: Sequence[GpuCapacity]) -> Iterator[str]:
        limits, environment = placement.limits, self.request.environment
        indexes = [gpu.index for gpu in placement.gpus] if self.request.is_local else range(len(placement.gpus))
        needs = quota.resolve(placement.gpus, limits.memory, limits.sm, environment, indexes)
        by_uuid = {each.gpu.uuid: each for each in others}
        for gpu, need in zip(placement.gpus, needs, strict=True):
            if not self.in_place_of:
                yield quota.doubt(need.memory_bytes)
            if self.request.limits.sm_policy is not SmPolicy.OFF:
                yield by_uuid[gpu.uuid].crowding(need, self.request.before.get(gpu.uuid))

    @contextmanager
    def granted(self) -> Iterator[Placement]:
        """Wait for room, then yield the placement, with the lock held; what the launch takes is to be confirmed in it.

        Raises NoRoomError when there is none in time, and what look() raises.
        """
        uuids = [gpu.uuid for gpu in candidates(self.request, self.gpus).all]
        is_guarded = self.preempts_idle and _is_guarded()
        wait_s = self.wait_s or _MAKES_WAY_IN_S * is_guarded
        with closing(Line(uuids, wait_s, self.say, asked=self.request.shown)) as line:
            while True:
                refusal = None
                with admission_lock(self.warn):
                    try:
                        self._placement = None if line.is_behind() else self.look()
                    except NoRoomError as error:
                        refusal = _although_preempting(error, is_guarded) if self.preempts_idle else error
                        if error.gpus == () and not self.wait_s:  # others that make way are of no use
                            raise
                    if self._placement is not None:
                        line.close()
                        yield self._placement
                        return
                    line.join()
                line.wait(refusal)

    def confirm(self, taken: str) -> None:
        """Look again after the launch has taken its share, which has the id `taken` among the holders.

        Only reservations count, since use outside of them may have grown by nobody's fault. Raises
        NoRoomError: then the launch gives its share back.
        """
        assert self._placement is not None
        chosen = "device=" + ",".join(gpu.uuid for gpu in self._placement.gpus)
        again = replace(self.request, gpus=chosen, limits=self._placement.limits)
        others = [each for each in all_holders(self.engine) if each.id != taken]
        place(again, capacities(self.gpus, None, others), self.grant)


def _is_guarded() -> bool:
    from vgpurun.inventory import guarded  # few launches ask

    return guarded.is_running()


def _although_preempting(refusal: NoRoomError, is_guarded: bool) -> NoRoomError:
    """Return a refusal that says why no idle program makes way: none does without a guard, some may not with one."""
    why = "nothing idle that may be suspended made way" if is_guarded else "no vgpurun guard runs to suspend idle ones"
    return NoRoomError(refusal.reason, f"--preempt-idle: {why}; {refusal.way_out}", refusal.details, refusal.gpus)
