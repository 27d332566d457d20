"""How busy a container kept a device lately, by the seconds that its processes write (lib/src/shared/history.h)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from vgpurun import abi

WINDOWS_S = (1, 10, 60)
_FULL_SECOND_US = 1_000_000


class Utilization(NamedTuple):
    """The share of a device's time that a container used, in percent, over the last 1, 10 and 60 seconds.

    A younger container's is over its whole life.
    """

    last_1s: float = 0.0
    last_10s: float = 0.0
    last_60s: float = 0.0


def read_seconds(seconds: Sequence[int], now_ns: int, age_s: float = math.inf) -> Utilization:
    """Return the shares over whole seconds before `now_ns` of CLOCK_MONOTONIC, of a container of this age.

    It is as old as its work, at least. The ring is the container's to write: an entry of another second counts as none,
    and none as more than a second.
    """
    this_second = now_ns // 1_000_000_000

    def busy_us(second: int) -> int:
        entry = seconds[second % abi.SECONDS]
        return min(entry & 0xFFFFFFFF, _FULL_SECOND_US) if entry >> 32 == second & 0xFFFFFFFF else 0

    busy = [busy_us(this_second - age) for age in range(1, max(WINDOWS_S) + 1)]
    oldest_s = max((age for age, used_us in enumerate(busy, 1) if used_us), default=0)
    whole_s = max(age_s - now_ns % 1_000_000_000 / 1e9, oldest_s)  # up to the beginning of this second

    def percent(window_s: int) -> float:
        there_s = max(1.0, min(window_s, whole_s))
        return 100 * sum(busy[:window_s]) / (there_s * _FULL_SECOND_US)

    return Utilization(*map(percent, WINDOWS_S))
