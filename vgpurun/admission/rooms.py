"""How much of each GPU is promised to whom, and what is left of it.

A memory limit is a promise: the limits on a GPU together are at most its memory. A container without one may use the
whole GPU, so nobody is promised memory beside it, and it is placed beside no promise; several without a limit share as
they would without vgpurun. A compute limit is a promise as well, and they are 100 % together; a container without
one is promised no compute, and takes what the others leave.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.quota import Quota, show_size

# What is used outside of promises is not counted up to the lesser of these: a desktop, the driver's own, a moment's
# difference between two readings. Else the last of four shares of 25 % would come and go with them.
_SLACK_BYTES = 1 << 30
_SLACK_PERCENT = 5


class Share(NamedTuple):
    """What a holder was promised of one GPU, and what it holds of it now; None is unknown."""

    holder: Holder
    quota: Quota
    held_bytes: int | None


class Room(NamedTuple):
    """One GPU, its shares, and what NVML sees in use, by programs outside of vgpurun too."""

    gpu: Gpu
    shares: tuple[Share, ...]
    used_bytes: int

    @property
    def promised_bytes(self) -> int:
        """The sum of the memory limits."""
        return sum(share.quota.memory_bytes or 0 for share in self.shares)

    @property
    def promised_sm_percent(self) -> int:
        """The sum of the compute limits."""
        return sum(share.quota.sm_percent or 0 for share in self.shares)

    @property
    def unlimited(self) -> list[Share]:
        """The shares without a memory limit."""
        return [share for share in self.shares if share.quota.memory_bytes is None]

    @property
    def outside_bytes(self) -> int:
        """What is in use beside all promises: by programs outside of vgpurun, and by containers without a limit."""
        return max(0, self.used_bytes - sum(_held_of_promise(share) for share in self.shares))

    @property
    def left_bytes(self) -> int:
        """What can still be promised and is really free."""
        return max(0, self.gpu.memory_bytes - self.promised_bytes - self.outside_bytes)

    @property
    def load(self) -> float:
        """How full the GPU is, from 0 to 1 (more when it is overcommitted)."""
        if self.unlimited:
            return 1.0
        memory = (self.promised_bytes + self.outside_bytes) / self.gpu.memory_bytes
        return max(memory, self.promised_sm_percent / 100)

    def without(self, holder_id: str) -> "Room":
        """Return the room as it would be if this holder had nothing and used nothing of it."""
        own = [share for share in self.shares if share.holder.id == holder_id]
        others = tuple(share for share in self.shares if share.holder.id != holder_id)
        return Room(self.gpu, others, max(0, self.used_bytes - sum(map(_held_of_promise, own))))

    def refusal(self, need: Quota, before: Quota | None = None) -> str | None:
        """Return why there is no room for `need`, or None where there is. What it has `before` it keeps."""
        more_memory = before is None or need.has_more_memory_than(before)
        more_compute = before is None or need.has_more_compute_than(before)
        return (self._memory_refusal(need.memory_bytes) if more_memory else None) or (
            self._sm_refusal(need.sm_percent) if more_compute else None
        )

    def _memory_refusal(self, need_bytes: int | None) -> str | None:
        if need_bytes is None:
            promised = show_size(self.promised_bytes)
            return f"without --mem it could take the {promised} promised to others" if self.promised_bytes else None
        if self.unlimited:
            return f"{self.unlimited[0].holder.name} runs there without a memory limit and may take all of it"
        slack_bytes = min(_SLACK_BYTES, self.gpu.memory_bytes * _SLACK_PERCENT // 100)
        promised_or_used_bytes = self.promised_bytes + max(0, self.outside_bytes - slack_bytes)
        if need_bytes <= self.gpu.memory_bytes - promised_or_used_bytes:
            return None
        return f"{show_size(self.left_bytes)} is left"

    def _sm_refusal(self, need_percent: int | None) -> str | None:
        left_percent = 100 - self.promised_sm_percent
        if need_percent is None or need_percent <= left_percent:
            return None
        return f"{max(0, left_percent)} % of its time is left"


def rooms(gpus: Sequence[Gpu], uses: Sequence[GpuUse], holders: Sequence[Holder]) -> list[Room]:
    """Return the room of each GPU. `uses` are NVML's readings, taken before the holders' own are."""
    held = [holder.held_bytes() for holder in holders]
    shares: dict[str, list[Share]] = {gpu.uuid: [] for gpu in gpus}
    for holder, held_bytes in zip(holders, held, strict=True):
        for uuid, quota in holder.quotas:
            if uuid in shares:
                shares[uuid].append(Share(holder, quota, None if held_bytes is None else held_bytes.get(uuid)))
    return [Room(gpu, tuple(shares[gpu.uuid]), use.memory_used_bytes) for gpu, use in zip(gpus, uses, strict=True)]


def _held_of_promise(share: Share) -> int:
    """What a share uses of its promise. Its own reading is its own to write: it is cut, and if unknown taken as all."""
    promised_bytes = share.quota.memory_bytes
    if promised_bytes is None:
        return 0
    return promised_bytes if share.held_bytes is None else min(share.held_bytes, promised_bytes)
