"""GPU time between two snapshots, and how long tenants held memory without any, or had given it back."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vgpurun.metrics.snapshot import Device, GpuSeen

Key = tuple[str, str]  # a tenant's id, and a GPU's UUID


class GpuTime(NamedTuple):
    """A use of GPU time by one tenant: measured, or estimated, or else not known."""

    seconds: float
    is_measured: bool
    is_estimated: bool

    @property
    def is_none(self) -> bool:
        """Whether it is known that there was none."""
        return self.seconds == 0 and (self.is_measured or self.is_estimated)


class Held(NamedTuple):
    """For how long a tenant held memory of a GPU and used no time of it, and for how long it was suspended."""

    idle_s: float = 0.0
    given_back_s: float = 0.0


def gpu_time(device: "Device", seen: "GpuSeen | None", before_s: float, elapsed_s: float) -> GpuTime:
    """Return what was used since the tenant's counter was at `before_s`, but no more than there was time.

    Of those that work at the same time it is not known. One without a compute limit that is alone on its GPU is not
    measured, unless it takes turns with its memory: it is what NVML says of the GPU, if that can be asked.
    """
    used_s = min(since(device.counted_s, before_s), elapsed_s)
    is_alone = seen is not None and seen.only_user is device
    quota = device.quota
    if quota.together:  # by MPS
        return GpuTime(0.0, is_measured=False, is_estimated=False)
    is_always = quota.sm_percent is not None or quota.takes_turns or quota.is_away
    is_measured = is_always or used_s > 0 or not is_alone
    if not is_measured and seen is not None and seen.utilization_ratio is not None:
        return GpuTime(seen.utilization_ratio * elapsed_s, is_measured=False, is_estimated=True)
    return GpuTime(used_s, is_measured, is_estimated=False)


def since(busy_s: float, before_s: float) -> float:
    """Return by how much a counter has risen. One that is lower than it was has begun anew."""
    return busy_s - before_s if busy_s >= before_s else busy_s


def held(device: "Device", time: GpuTime, elapsed_s: float) -> Held:
    """Return what becomes of some time with this use, whose memory counts as it is now."""
    is_idle = time.is_none and bool(device.memory_used_bytes)
    return Held(elapsed_s * is_idle, elapsed_s * (device.quota.is_suspended and bool(device.suspended_bytes)))


class Holding:
    """Adds up what every tenant has held and given back since this began to look."""

    def __init__(self) -> None:
        self._looked_s = 0.0
        self._counted_s: dict[Key, float] = {}  # GPU time, at the last snapshot
        self._held: dict[Key, Held] = {}

    def look(self, gpus: Sequence["GpuSeen"], now_s: float) -> Mapping[Key, Held]:
        """Return the sums, with the time since the last call. A tenant that was not there then begins with nothing."""
        elapsed_s = now_s - self._looked_s
        found: dict[Key, Held] = {}
        counted_s: dict[Key, float] = {}
        for seen in gpus:
            for device in seen.devices:
                if device.reading is None:
                    continue
                key = device.key
                counted_s[key] = device.counted_s
                found[key] = self._held.get(key, Held())
                if key in self._counted_s:
                    used = gpu_time(device, seen, self._counted_s[key], elapsed_s)
                    found[key] = Held(*map(sum, zip(found[key], held(device, used, elapsed_s), strict=True)))
        self._looked_s, self._counted_s, self._held = now_s, counted_s, found
        return found
