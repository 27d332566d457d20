"""Decides which of those that take turns (--swap) has its memory on the GPUs, and which comes next. Pure.

A *group* is a container, a slice with all that has joined it, or a local process. Each GPU has one group at
most. The one that has waited longest comes next, once those there have had their turn, which is as long for each: so
long that moving memory takes a fifth of the time at most. One that is idle gives the rest of its turn away.
"""

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

LEAST_TURN_S = 2.0
_MOVING_PART = 0.2  # a fifth of all the time, at most
_IDLE_S = 1.0  # without GPU time, after which a turn is over, or
_IDLE_PART = 0.25  # an exchange's time, if longer: else every pause of a program would cost an exchange


class Group(NamedTuple):
    """A group that takes turns, as it is now. `wants`: a call of it waits. `is_moving`: on its way in or out.

    `busy_s` is when it was last seen to use the GPU, `seen_s` when that was last looked at: since then it may work.
    """

    id: str
    gpus: frozenset[str]
    is_there: bool
    wants: bool
    busy_s: float = 0.0
    seen_s: float = 0.0
    is_moving: bool = False


class Exchange(NamedTuple):
    """An action: these go, and then that one comes, if any. `idle` are those of them that need no turn now."""

    out: tuple[str, ...]
    into: str | None
    idle: frozenset[str] = frozenset()


class Turns:
    """The order of turns. It remembers only since when each has waited or had the GPU, so a new one can go on."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}  # groups on a GPU
        self._waiting_s: dict[str, float] = {}  # since when, the longest first
        self._was_cut_off: set[str] = set()  # at work when their turn ended: they want the next one, asked or not
        self._out_s: dict[str, float] = {}  # the duration of each group's last exchange
        self._in_s: dict[str, float] = {}

    def decide(self, groups: Sequence[Group], now_s: float) -> list[Exchange]:
        """Return the exchanges that are to begin now; each says by went() and came() what has become of it."""
        self._note(groups, now_s)
        by_id = {each.id: each for each in groups}
        claimed: set[str] = set()
        found = []
        for waiting in [by_id[each] for each in sorted(self._waiting_s, key=self._waiting_s.__getitem__)]:
            is_behind = bool(waiting.gpus & claimed)
            claimed |= waiting.gpus
            there = [each for each in groups if each.id != waiting.id and self._is_in_way(each, waiting)]
            if is_behind or waiting.is_moving or any(each.is_moving for each in there):
                continue
            turn_s = self.turn_s(waiting.gpus, groups)
            idle = frozenset(each.id for each in there if self._is_idle(each))
            if all(each.id in idle or now_s - self._began_s[each.id] >= turn_s for each in there):
                found.append(Exchange(tuple(each.id for each in there), waiting.id, idle))
        return [*found, *self._too_many(groups, claimed)]

    def turn_s(self, gpus: Set[str], groups: Sequence[Group]) -> float:
        """Return how long turns on these GPUs are now: the same for all, or the one with more memory had more time."""
        contending = [each.id for each in groups if each.gpus & gpus and (each.is_there or each.id in self._waiting_s)]
        costs_s = [self._out_s.get(each, 0.0) + self._in_s.get(each, 0.0) for each in contending]
        mean_s = sum(costs_s) / max(len(costs_s), 1)
        return max(LEAST_TURN_S, mean_s * (1 - _MOVING_PART) / _MOVING_PART)

    def waits_since_s(self, group: str) -> float | None:
        """Return since when a group waits for its turn, or None."""
        return self._waiting_s.get(group)

    def came(self, group: str, now_s: float, took_s: float) -> None:
        """Note that its turn has begun."""
        self._began_s[group] = now_s
        self._in_s[group] = took_s
        self._waiting_s.pop(group, None)
        self._was_cut_off.discard(group)

    def went(self, group: str, now_s: float, took_s: float, was_idle: bool) -> None:
        """Note that its turn is over."""
        self._began_s.pop(group, None)
        self._out_s[group] = took_s
        if not was_idle:
            self._was_cut_off.add(group)
            self._waiting_s[group] = now_s

    def failed(self, group: str, now_s: float) -> None:
        """Note that it could not go, and so has another turn; or not come, and so lets the others come before."""
        for since_s in (self._began_s, self._waiting_s):
            if group in since_s:
                since_s[group] = now_s

    def _note(self, groups: Sequence[Group], now_s: float) -> None:
        ids = {each.id for each in groups}
        for known in (self._began_s, self._waiting_s, self._out_s, self._in_s):
            for gone in known.keys() - ids:
                del known[gone]
        self._was_cut_off &= ids
        for each in groups:
            if each.is_moving:
                continue
            if each.is_there:
                self._began_s.setdefault(each.id, now_s)
                self._waiting_s.pop(each.id, None)
            elif each.wants or each.id in self._was_cut_off:
                self._waiting_s.setdefault(each.id, now_s)
            else:
                self._waiting_s.pop(each.id, None)

    def _is_in_way(self, other: Group, waiting: Group) -> bool:
        return (other.is_there or other.is_moving) and bool(other.gpus & waiting.gpus)

    def _is_idle(self, group: Group) -> bool:
        cost_s = self._out_s.get(group.id, 0.0) + self._in_s.get(group.id, 0.0)
        idle_s = group.seen_s - max(group.busy_s, self._began_s[group.id])
        return idle_s >= max(_IDLE_S, cost_s * _IDLE_PART)

    def _too_many(self, groups: Sequence[Group], claimed: Set[str]) -> Iterator[Exchange]:
        """Yield those that have come beside another in some other way, as by `docker start`."""
        taken: set[str] = set()
        there = [each for each in groups if each.is_there and not each.is_moving]
        for each in sorted(there, key=lambda each: self._began_s[each.id]):
            if each.gpus & taken and not each.gpus & claimed:
                yield Exchange((each.id,), None)
            taken |= each.gpus
