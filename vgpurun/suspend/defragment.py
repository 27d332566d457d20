"""Finds the cheapest moves after which a launch fits. Pure: from what each GPU has, and what may go where.

The search is A*: states in the order of the bytes that have been copied and those that have to be at least, so that the
first answer is the best. Each share moves once, and each move finds room when it is its turn.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from vgpurun.admission.capacity import GpuCapacity, Share
from vgpurun.admission.request import Candidates
from vgpurun.host.gpus import Gpu
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.quota import Quota

_MOST_LOOKS = 10_000  # at a move: some seconds, on a host of 8 GPUs with 50 shares

MayMove = Callable[[Holder, Gpu], bool]
_State = Mapping[str, GpuCapacity]


class Move(NamedTuple):
    """A share that leaves a GPU for another, with what it holds there."""

    holder: Holder
    old: Gpu
    new: Gpu
    held_bytes: int


class Wanted(NamedTuple):
    """A launch: which GPUs it may have, and what it needs on each, by UUID."""

    gpus: Candidates
    needs: Mapping[str, Quota]

    def fitting(self, state: _State) -> list[Gpu]:
        """Return the GPUs that have room for it: as many as it wants, or none."""
        free = [gpu for gpu in self.gpus.all if state[gpu.uuid].refusal(self.needs[gpu.uuid]) is None]
        others = [gpu for gpu in free if gpu in self.gpus.others]
        if len(others) < self.gpus.others_count or not all(gpu in free for gpu in self.gpus.fixed):
            return []
        return [*self.gpus.fixed, *others[: self.gpus.others_count]]

    def least_bytes(self, state: _State, moved: Set[str]) -> float:
        """Return a number of bytes that have to be moved still, whatever is moved."""
        least = {gpu: _least_bytes(state[gpu.uuid], self.needs[gpu.uuid], moved) for gpu in self.gpus.all}
        others = sorted(least[gpu] for gpu in self.gpus.others)
        return sum(least[gpu] for gpu in self.gpus.fixed) + sum(others[: self.gpus.others_count])


def _least_bytes(capacity: GpuCapacity, need: Quota, moved: Set[str]) -> float:
    """Return what would have to leave a GPU if parts of shares could, those first that hold least of what they have."""
    shares = [share for share in capacity.shares if _may_go(share, moved)]
    lacking_bytes = (
        capacity.reserved_bytes if need.reserved_bytes is None else need.reserved_bytes - capacity.reservable_bytes()
    )
    lacking_percent = (need.sm_percent or 0) + capacity.reserved_sm_percent - 100 if need.sm_percent else 0
    return max(
        _part(lacking_bytes, [(share.quota.reserved_bytes or 0, _held_bytes(share)) for share in shares]),
        _part(lacking_percent, [(share.quota.sm_percent or 0, _held_bytes(share)) for share in shares]),
    )


def _part(lacking: int, shares: Sequence[tuple[int, int]]) -> float:
    """Return the fewest bytes that go with what is lacking, of shares that give something and hold something."""
    bytes_gone = 0.0
    for gives, held_bytes in sorted((each for each in shares if each[0]), key=lambda each: each[1] / each[0]):
        if lacking <= 0:
            break
        bytes_gone += held_bytes * min(1.0, lacking / gives)
        lacking -= gives
    return bytes_gone if lacking <= 0 else math.inf


def cheapest(wanted: Wanted, capacities: Sequence[GpuCapacity], may_move: MayMove) -> list[Move] | None:
    """Return the moves, none where it fits already; None where none are found that help."""
    begun = {capacity.gpu.uuid: capacity for capacity in capacities}
    heap: list[tuple[float, float, int, int, _State, tuple[Move, ...]]] = [(0, 0, 0, 0, begun, ())]
    seen: set[frozenset[tuple[str, str, str]]] = set()
    looks = 0
    while heap:
        *_, state, moves = heapq.heappop(heap)
        gone_bytes = sum(move.held_bytes for move in moves)
        if wanted.fitting(state):
            return list(moves)
        for move, after in _next(state, moves, may_move):
            looks += 1
            if looks > _MOST_LOOKS:
                return None
            key = frozenset((each.holder.id, each.old.uuid, each.new.uuid) for each in (*moves, move))
            least_bytes = wanted.least_bytes(after, {each.holder.id for each in (*moves, move)})
            if key not in seen and least_bytes < math.inf:
                seen.add(key)
                total_bytes = gone_bytes + move.held_bytes + least_bytes
                heapq.heappush(heap, (total_bytes, least_bytes, len(moves) + 1, looks, after, (*moves, move)))
    return None


def _next(state: _State, moves: Sequence[Move], may_move: MayMove) -> Iterator[tuple[Move, _State]]:
    """Yield each further move for which there is room now, and what each GPU has then."""
    moved = {each.holder.id for each in moves}
    for capacity in state.values():
        for share in capacity.shares:
            if not _may_go(share, moved):
                continue
            for other in state.values():
                if _has_room(other, share) and may_move(share.holder, other.gpu):
                    after = {
                        **state,
                        capacity.gpu.uuid: capacity.without(share.holder.id),
                        other.gpu.uuid: other.with_share(share),
                    }
                    yield Move(share.holder, capacity.gpu, other.gpu, _held_bytes(share)), after


def _may_go(share: Share, moved: Set[str]) -> bool:
    return share.holder.id not in moved and not share.quota.takes_turns


def _held_bytes(share: Share) -> int:
    """Return what it holds, which is what is copied; as much as it may where that is not known."""
    return share.quota.reserved_bytes or 0 if share.held_bytes is None else share.held_bytes


def _has_room(capacity: GpuCapacity, share: Share) -> bool:
    is_there = any(each.holder.id == share.holder.id for each in capacity.shares)
    return not is_there and capacity.refusal(share.quota) is None
