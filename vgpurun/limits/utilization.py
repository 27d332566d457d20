"""How busy a container kept a device lately, from the ring of seconds that its processes write (lib/seconds.h)."""

from collections.abc import Sequence
from typing import NamedTuple

from vgpurun import abi

WINDOWS_S = (1, 10, 60)
_FULL_SECOND_US = 1_000_000


class Utilization(NamedTuple):
    """The share of a device's time that a container used, in percent, over the last 1, 10 and 60 seconds."""

    last_1s: float = 0.0
    last_10s: float = 0.0
    last_60s: float = 0.0


def read_seconds(seconds: Sequence[int], now_ns: int) -> Utilization:
    """Return the shares over whole seconds before `now_ns` of CLOCK_MONOTONIC.

    The ring is the container's to write: an entry of another second counts as none, and none as more than a second.
    """
    this_second = now_ns // 1_000_000_000

    def busy_us(second: int) -> int:
        entry = seconds[second % abi.SECONDS]
        return min(entry & 0xFFFFFFFF, _FULL_SECOND_US) if entry >> 32 == second & 0xFFFFFFFF else 0

    busy = [busy_us(this_second - age) for age in range(1, max(WINDOWS_S) + 1)]
    return Utilization(*(100 * sum(busy[:window]) / (window * _FULL_SECOND_US) for window in WINDOWS_S))
