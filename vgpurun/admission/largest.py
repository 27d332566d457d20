"""The largest launch that would start now, so that nobody has to find it by being refused."""

from collections.abc import Sequence

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.admission.grants import Grant
from vgpurun.limits.quota import LEAST_LIMIT_BYTES, Quota

_MIB = 1 << 20


def largest(capacity: GpuCapacity, capacities: Sequence[GpuCapacity], grant: Grant) -> Quota | str:
    """Return the most that one launch on this GPU alone would get, in whole MiB; in words why none would start.

    No compute in it: all of that is reserved, and the launch gets what the others leave.
    """
    left = grant.left_on(capacity, capacities)
    if capacity.unlimited:
        return f"{capacity.unlimited[0].holder.name} runs without --mem"
    if left is None:
        return "your quota is used up" if grant.allows(capacity.gpu) else "your quota leaves this GPU out"
    memory_bytes = capacity.free_bytes if left.memory_bytes is None else min(capacity.free_bytes, left.memory_bytes)
    free_percent = max(0, 100 - capacity.reserved_sm_percent)
    sm_percent = free_percent if left.sm_percent is None else min(free_percent, left.sm_percent)
    if memory_bytes < LEAST_LIMIT_BYTES:
        return "all memory is reserved or in use"
    if left.sm_percent is not None and sm_percent == 0:
        return "all time is reserved, and your quota takes --sm"
    return Quota(memory_bytes // _MIB * _MIB, sm_percent or None)
