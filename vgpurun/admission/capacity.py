"""How much of each GPU is reserved, by which holder, and how much is free.

A memory limit is a reservation: the limits on a GPU together are at most its memory. Where only a part of a limit is
guaranteed, that part alone is reserved; what is used beyond it counts as use outside of all reservations. A
container without a limit may use the whole GPU, so it shares a GPU with no reservation, only with others that have no
limit either, as they would without vgpurun. A compute limit is a reservation as well, and together they are at most
100 %; a container without one reserves no compute, and takes what the others leave.

Holders that take turns (--swap) are on the GPU one at a time, so they share one reservation: the largest of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory.held import held_by_each
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.quota import Quota, show_size

# Use outside of all reservations is ignored up to the lesser of these: a desktop, the driver's own, a moment's
# difference between two readings. Else the last of four shares of 25 % would come and go with it.
_SLACK_BYTES = 1 << 30
_SLACK_PERCENT = 5
_LITTLE_PERCENT = 10  # the GPU's time; launches that get less by leaving out --sm hardly meant that


@dataclass(frozen=True)
class Share:
    """A holder's reservation on one GPU, and its use of it now; None is unknown."""

    holder: Holder
    quota: Quota
    held_bytes: int | None


@dataclass(frozen=True)
class GpuCapacity:
    """A GPU, its shares, and what NVML sees in use, by programs outside of vgpurun too."""

    gpu: Gpu
    shares: tuple[Share, ...]
    used_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """The sum of the memory limits, or of what of them is guaranteed, and what those that take turns share."""
        return self._reserved_beside_turns_bytes + self.turns_bytes

    @property
    def turns_bytes(self) -> int:
        """The memory that those that take turns share."""
        return max((share.quota.reserved_bytes or 0 for share in self.shares if share.quota.takes_turns), default=0)

    @property
    def _reserved_beside_turns_bytes(self) -> int:
        return sum(share.quota.reserved_bytes or 0 for share in self.shares if not share.quota.takes_turns)

    @property
    def reserved_sm_percent(self) -> int:
        """The sum of the compute limits, where those that take turns have the largest of theirs."""
        return sum(self._sm_percents(False)) + max(self._sm_percents(True), default=0)

    def _sm_percents(self, takes_turns: bool) -> list[int]:
        return [share.quota.sm_percent or 0 for share in self.shares if share.quota.takes_turns == takes_turns]

    @property
    def unlimited(self) -> list[Share]:
        """The shares without a memory limit."""
        return [share for share in self.shares if share.quota.memory_bytes is None]

    @property
    def outside_bytes(self) -> int:
        """Memory in use outside of all reservations: by programs without vgpurun, and by containers without a limit."""
        return max(0, self.used_bytes - self._held_of_reservations(self.shares))

    def _held_of_reservations(self, shares: Sequence[Share]) -> int:
        in_turns = sum(_held_of_reservation(share) for share in shares if share.quota.takes_turns)
        others = sum(_held_of_reservation(share) for share in shares if not share.quota.takes_turns)
        return others + min(in_turns, self.turns_bytes)

    @property
    def free_bytes(self) -> int:
        """Memory that is neither reserved nor in use."""
        return self.free_for(takes_turns=False)

    def free_for(self, takes_turns: bool) -> int:
        """Return that memory; one that takes turns may have what others that do so have in theirs."""
        reserved_bytes = self._reserved_beside_turns_bytes if takes_turns else self.reserved_bytes
        return max(0, self.gpu.memory_bytes - reserved_bytes - self.outside_bytes)

    def reservable_bytes(self, takes_turns: bool = False) -> int:
        """Return the largest reservation that would be let in, below zero where there is too much already."""
        slack_bytes = min(_SLACK_BYTES, self.gpu.memory_bytes * _SLACK_PERCENT // 100)
        reserved_bytes = self._reserved_beside_turns_bytes if takes_turns else self.reserved_bytes
        return self.gpu.memory_bytes - reserved_bytes - max(0, self.outside_bytes - slack_bytes)

    @property
    def load(self) -> float:
        """How full the GPU is, from 0 to 1 (more when it is overcommitted)."""
        if self.unlimited:
            return 1.0
        memory = (self.reserved_bytes + self.outside_bytes) / self.gpu.memory_bytes
        return max(memory, self.reserved_sm_percent / 100)

    def without(self, holder_id: str, held_bytes: int = 0) -> "GpuCapacity":
        """Return the capacity as it would be without this holder's reservation and use.

        `held_bytes` is its use by the driver's word: more than its reservation where that has been lowered.
        """
        own = [share for share in self.shares if share.holder.id == holder_id]
        others = tuple(share for share in self.shares if share.holder.id != holder_id)
        return GpuCapacity(self.gpu, others, max(0, self.used_bytes - max(held_bytes, self._held_of_reservations(own))))

    def with_share(self, share: Share) -> "GpuCapacity":
        """Return the capacity as it would be with this share, and its use."""
        return GpuCapacity(self.gpu, (*self.shares, share), self.used_bytes + self._held_of_reservations([share]))

    def crowding(self, need: Quota, before: Quota | None = None) -> str:
        """Return in words that one without a compute limit will get hardly any time here, or nothing."""
        if need.sm_percent is not None or (before is not None and before.sm_percent is None):
            return ""
        unlimited = sum(share.quota.sm_percent is None for share in self.shares)
        left_percent = max(1, (100 - self.reserved_sm_percent) // (unlimited + 1))
        if left_percent >= _LITTLE_PERCENT:
            return ""
        return (
            f"{self.reserved_sm_percent} % of the time of GPU {self.gpu.number} is reserved: without --sm this gets "
            f"{left_percent} % while the others use theirs"
        )

    def refusal(self, need: Quota, before: Quota | None = None) -> str | None:
        """Return why there is no room for `need`, or None where there is. It keeps what it has `before`."""
        more_memory = before is None or need.has_more_memory_than(before)
        more_compute = before is None or need.has_more_compute_than(before)
        return (self._memory_refusal(need.reserved_bytes, need.takes_turns) if more_memory else None) or (
            self._sm_refusal(need.sm_percent, need.takes_turns) if more_compute else None
        )

    def _memory_refusal(self, need_bytes: int | None, takes_turns: bool) -> str | None:
        if need_bytes is None:
            reserved = show_size(self.reserved_bytes)
            return f"without --mem it could take the {reserved} reserved by others" if self.reserved_bytes else None
        if self.unlimited:
            return f"{self.unlimited[0].holder.name} runs there without a memory limit and may take all of it"
        if need_bytes <= self.reservable_bytes(takes_turns):
            return None
        return f"{show_size(self.free_for(takes_turns))} is free"

    def _sm_refusal(self, need_percent: int | None, takes_turns: bool) -> str | None:
        free_percent = 100 - (sum(self._sm_percents(False)) if takes_turns else self.reserved_sm_percent)
        if need_percent is None or need_percent <= free_percent:
            return None
        return f"{max(0, free_percent)} % of its time is free"


def capacities(gpus: Sequence[Gpu], uses: Sequence[GpuUse] | None, holders: Sequence[Holder]) -> list[GpuCapacity]:
    """Return the capacity of each GPU, where what is suspended has nothing.

    `uses` are NVML's readings, taken before the holders' own are. None: reservations alone count, and no use is read.
    """
    held = [None] * len(holders) if uses is None else held_by_each(holders, gpus)
    shares: dict[str, list[Share]] = {gpu.uuid: [] for gpu in gpus}
    for holder, held_bytes in zip(holders, held, strict=True):
        for uuid, quota in holder.quotas:
            if uuid in shares and not quota.is_suspended:
                shares[uuid].append(Share(holder, quota, None if held_bytes is None else held_bytes.get(uuid)))
    used = [0] * len(gpus) if uses is None else [use.memory_used_bytes for use in uses]
    return [GpuCapacity(gpu, tuple(shares[gpu.uuid]), each) for gpu, each in zip(gpus, used, strict=True)]


def _held_of_reservation(share: Share) -> int:
    """Return what a share uses of its reservation: the container writes that reading itself, so it is capped, and an
    unknown one counts as all."""
    reserved_bytes = share.quota.reserved_bytes
    if reserved_bytes is None or share.quota.is_away:
        return 0
    return reserved_bytes if share.held_bytes is None else min(share.held_bytes, reserved_bytes)
