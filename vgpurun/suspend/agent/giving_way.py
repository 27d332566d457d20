"""Has idle programs that allow it give way to those that wait for their GPUs."""

from collections.abc import Iterator, Set
from contextlib import suppress

from vgpurun.admission.tickets import queue
from vgpurun.errors import NoRoomError
from vgpurun.suspend.agent.facts import Facts
from vgpurun.suspend.agent.roster import Roster
from vgpurun.suspend.agent.transitions import Transitions
from vgpurun.suspend.agent.troubles import Troubles
from vgpurun.suspend.agent.uses import Uses
from vgpurun.suspend.record import Record
from vgpurun.suspend.targets import Target

_AFTER_S = 10.0  # idle for so long, or for its own shorter time
_NO_ROOM_S = 0.2  # from one look for room to the next


class GivingWay:
    """Finds room for what waits."""

    def __init__(self, roster: Roster, facts: Facts, uses: Uses, transitions: Transitions, troubles: Troubles) -> None:
        self._roster = roster
        self._facts = facts
        self._uses = uses
        self._transitions = transitions
        self._troubles = troubles

    def wake(self, target: Target, found: Record, now_s: float) -> None:
        """Bring back a target that asks for its GPUs, or put it off where there is no room.

        Raises VgpurunError and OSError.
        """
        for other in (None, *self._may_give_way(self._facts.marks(target).uuids, now_s)):
            if other is not None and not self._transitions.suspend_idle(other, f"room for {target.name}"):
                continue
            with suppress(NoRoomError):
                self._transitions.wake(target, found, self._roster.engine)
                self._uses.begin_anew(target)
                return
        self._troubles.put_off(target, _NO_ROOM_S)

    def let_in(self, now_s: float) -> None:
        """Suspend one that idles for a launch that has waited the longest for its GPUs, and looks again by itself."""
        before: set[str] = set()
        for waiting in queue():
            if before.isdisjoint(waiting.uuids):
                for other in self._may_give_way(waiting.uuids, now_s):
                    if self._transitions.suspend_idle(other, f"room for what waits: {waiting.asked}"):
                        return
            before |= waiting.uuids

    def _may_give_way(self, uuids: Set[str], now_s: float) -> Iterator[Target]:
        """Yield those on these GPUs that are idle and may be suspended, the longest idle first."""
        idle_s: dict[Target, float] = {}
        for other in self._roster.targets:
            marks, policy = self._facts.marks(other), self._facts.files(other).policy
            if policy is None or policy.action != "suspend" or marks.is_marked or uuids.isdisjoint(marks.uuids):
                continue
            for_s = self._uses.idle_s(other, now_s)
            if for_s >= min(_AFTER_S, policy.after_s):
                idle_s[other] = for_s
        yield from sorted(idle_s, key=lambda each: -idle_s[each])
