"""Keeps the driver's own memory limits of running containers equal to their limits files.

The hook at a container's start sets them first (cdi/hook.py). A cgroup that has none is not held by the driver, and is
left so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vgpurun.errors import EnforceError, GpuError
from vgpurun.host import memory_limits
from vgpurun.host.gpus import Gpu
from vgpurun.host.memory_limits import MemoryLimits
from vgpurun.limits.quota import Quota, show_size


@dataclass(frozen=True)
class Unsettled:
    """A limit of the driver's own that is not what it should be, and why."""

    gpu: Gpu
    limits: MemoryLimits
    reason: str

    def __str__(self) -> str:
        limit = "" if self.limits.most_bytes is None else f" at {show_size(self.limits.most_bytes)}"
        return f"the driver's own limit on GPU {self.gpu.number} stays{limit}: {self.reason}"


def settle(cgroups: Iterable[Path], quotas: Sequence[tuple[Gpu, Quota]]) -> list[Unsettled]:
    """Set the driver's own limits of these cgroups to these quotas; return what could not be set. Raises nothing."""
    return [left for cgroup in cgroups for gpu, quota in quotas if (left := _settle(cgroup, gpu, quota)) is not None]


def _settle(cgroup: Path, gpu: Gpu, quota: Quota) -> Unsettled | None:
    now = MemoryLimits(None)
    try:
        now = memory_limits.read(gpu, cgroup)
        guaranteed_bytes = quota.guaranteed_bytes or 0
        if now.most_bytes is None or now[:2] == (quota.memory_bytes, guaranteed_bytes):
            return None
        if quota.memory_bytes is not None and now.used_bytes > quota.memory_bytes:
            return Unsettled(gpu, now, f"{show_size(now.used_bytes)} is in use, and the driver refuses less")
        # A limit that is lifted stays one, of all that the GPU has: so a later one is set again.
        most_bytes = gpu.memory_bytes if quota.memory_bytes is None else quota.memory_bytes
        memory_limits.write(gpu, cgroup, most_bytes, guaranteed_bytes)
    except (EnforceError, GpuError) as error:
        return None if now.most_bytes is None else Unsettled(gpu, now, str(error))
    return None
