"""Keeps what processes used of a GPU's time that have ended since.

NVML tells of the last second, and nothing of a process that has ended. So what was found of each is kept until it
would be out of that second by itself: a container may use its GPU by processes that are there for a part of one.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpurun.guard.snapshot import Contained, Snapshot

WINDOW_S = 1.0  # NVML's
LOOK_AGAIN_S = 0.1  # while there are short-lived ones: what a process uses after the last look at it is not known
_COME_AND_GO_S = 10.0  # after the last one, others are expected


class _Found(NamedTuple):
    """A process when it was last seen: the percentage of NVML's second that it had used, and for how long it lived.

    `tail_s` is for how long it lived on, most likely: until half the time to the look that did not find it any more.
    """

    percent: float
    seen_s: float
    age_s: float
    is_unseen: bool  # by the library
    tail_s: float | None = None  # None: it is there

    def percent_at(self, now_s: float) -> float:
        """Return what of it is in the second before that."""
        lived_s = min(max(self.age_s, 1e-3), WINDOW_S)
        tail_s = self.tail_s or 0.0
        in_window_s = min(WINDOW_S - (now_s - self.seen_s - tail_s), lived_s + tail_s)
        return self.percent * max(0.0, in_window_s) / lived_s


class Ended:
    """The processes of the last second, by container and GPU."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[int, _Found]] = {}
        self._came_s: dict[tuple[str, str], float] = {}  # when short-lived ones were last there that are not seen

    def follow(self, snapshot: Snapshot, container: Contained, uuid: str, utilization: Mapping[int, float]) -> None:
        """Take what NVML tells of the processes that are there."""
        key, now_s = (container.id, uuid), snapshot.now_s
        pids = snapshot.pids_of(*key)
        before = self._found.pop(key, {})
        found = {
            pid: each._replace(tail_s=(now_s - each.seen_s) / 2) if each.tail_s is None else each
            for pid, each in before.items()
            if pid not in pids and now_s - each.seen_s < 2 * WINDOW_S
        }
        unseen = self._unseen(snapshot, container, uuid, pids)
        for pid in pids:
            was_unseen = pid in before and before[pid].is_unseen  # it may be about to end
            found[pid] = _Found(utilization.get(pid, 0.0), now_s, snapshot.age_s(pid), was_unseen or pid in unseen)
        if found:
            self._found[key] = found

    def come_and_go(self, snapshot: Snapshot, limited: Mapping[str, Sequence[Contained]]) -> set[tuple[str, str]]:
        """Return containers and GPUs on which are_short_lived(), of those on GPUs that NVML tells of.

        Mostly there are none, and each is asked about only where a process has come or gone of late.
        """
        may_be = {
            (snapshot.programs[pid].container, uuid) for pid in snapshot.younger_than(WINDOW_S)
            for uuid, held in snapshot.held.items() if pid in held
        }  # fmt: skip
        may_be |= {key for key, found in self._found.items() if found.keys() - snapshot.held.get(key[1], {}).keys()}
        may_be |= self._came_s.keys()
        if not may_be:
            return set()
        return {
            (one.id, uuid) for uuid in limited.keys() & snapshot.held.keys() for one in limited[uuid]
            if (one.id, uuid) in may_be and self.are_short_lived(snapshot, one, uuid)
        }  # fmt: skip

    def is_quiet(self, uuid: str) -> bool:
        """Whether nothing of a GPU's processes is to be remembered while nobody uses it."""
        found = (each for key, of_key in self._found.items() if key[1] == uuid for each in of_key.values())
        return not any(each.percent or each.is_unseen for each in found)

    def are_short_lived(self, snapshot: Snapshot, container: Contained, uuid: str) -> bool:
        """Whether processes of it come and go that the library does not see."""
        key = (container.id, uuid)
        if self._unseen(snapshot, container, uuid, snapshot.pids_of(*key)) or self.unseen(snapshot, *key):
            self._came_s[key] = snapshot.now_s
        return snapshot.now_s - self._came_s.get(key, float("-inf")) < _COME_AND_GO_S

    def _unseen(self, snapshot: Snapshot, container: Contained, uuid: str, pids: Sequence[int]) -> set[int]:
        """Return the young ones among them: to ask about all of them each time would cost too much."""
        young = {pid for pid in pids if snapshot.age_s(pid) < WINDOW_S}
        return young.intersection(snapshot.unseen_of(container, uuid)) if young else young

    def percent(self, snapshot: Snapshot, container: str, uuid: str) -> float:
        """Return what those that have ended used of the last second."""
        return sum(each.percent_at(snapshot.now_s) for each in self._ended(snapshot, container, uuid))

    def unseen(self, snapshot: Snapshot, container: str, uuid: str) -> int:
        """Return how many of them used the GPU that the library did not see."""
        return sum(each.is_unseen for each in self._ended(snapshot, container, uuid))

    def _ended(self, snapshot: Snapshot, container: str, uuid: str) -> list[_Found]:
        pids = snapshot.pids_of(container, uuid)
        found = self._found.get((container, uuid), {})
        return [each for pid, each in found.items() if pid not in pids and each.percent_at(snapshot.now_s) > 0]

    def drop(self, snapshot: Snapshot) -> None:
        """Forget what has been gone for long."""
        now_s = snapshot.now_s
        self._came_s = {key: came_s for key, came_s in self._came_s.items() if now_s - came_s < _COME_AND_GO_S}
        self._found = {
            key: found for key, found in self._found.items()
            if any(now_s - each.seen_s < 2 * WINDOW_S for each in found.values())
        }  # fmt: skip
