"""Sees to one target: what its user asks for, what was interrupted, a program that wants its GPU back, and --idle."""

from collections.abc import Sequence

from vgpurun.limits.update import is_being_changed
from vgpurun.suspend.agent.answering import Answering
from vgpurun.suspend.agent.facts import Facts
from vgpurun.suspend.agent.giving_way import GivingWay
from vgpurun.suspend.agent.idling import Idling
from vgpurun.suspend.agent.transitions import Transitions
from vgpurun.suspend.record import Phase, Record
from vgpurun.suspend.targets import Target
from vgpurun.suspend.transition import is_asked_for


class Care:
    """The care of all targets."""

    def __init__(
        self, facts: Facts, answering: Answering, transitions: Transitions, giving_way: GivingWay, idling: Idling
    ) -> None:
        self._facts = facts
        self._answering = answering
        self._transitions = transitions
        self._giving_way = giving_way
        self._idling = idling
        self._watched: dict[str, Target] = {}

    @property
    def watched(self) -> Sequence[Target]:
        """Programs that are suspended, or on their way: the agent sees to them without delay, as a call may wait."""
        return list(self._watched.values())

    def keep(self, targets: Sequence[Target]) -> None:
        """Forget every target that is not among these."""
        self._watched = {each.id: each for each in targets if each.id in self._watched}

    def see_to(self, target: Target, now_s: float) -> None:
        """Do what is to be done about a target. Raises VgpurunError and OSError; then it is to be tried again."""
        found, policy, request = self._facts.files(target)
        if request is not None or self._answering.is_busy_with(target):
            self._watched[target.id] = target
            self._answering.see_to(target, request)
            return
        if found is not None:
            self._watched[target.id] = target
            self._see_to_suspended(target, found, now_s)
            return
        self._watched.pop(target.id, None)
        if self._facts.marks(target).is_marked and not is_being_changed(target):
            self._transitions.finish(target)
        elif policy:
            self._idling.see_to(target, policy, now_s)

    def _see_to_suspended(self, target: Target, found: Record, now_s: float) -> None:
        if is_being_changed(target):
            return
        if found.phase != Phase.SUSPENDED:
            self._transitions.finish(target)
        elif not (found.is_swapped or found.is_held) and is_asked_for(target, found):
            self._giving_way.wake(target, found, now_s)
