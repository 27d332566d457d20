"""How long a container waited for its turns, by the histogram of its processes (lib/src/shared/history.h)."""

from collections.abc import Sequence
from typing import NamedTuple

from vgpurun import abi

FIRST_S = 64e-6  # waits shorter than this are the first bucket's; each other one goes to twice the one before
_MINUTE_NS = 60_000_000_000


class WaitTimes(NamedTuple):
    """The waits of the last minute: half took no longer than the median, and 99 % no longer than `p99_s`."""

    median_s: float
    p99_s: float


def read_wait_times(times: abi.WaitTimes, now_ns: int) -> WaitTimes | None:
    """Return them as of `now_ns` of CLOCK_MONOTONIC, or None where nobody waited in the last minute.

    Of the minute before this one as large a part counts as still lies within the last sixty seconds.
    """
    minute, passed_ns = divmod(now_ns, _MINUTE_NS)
    none = [0] * abi.WAIT_BUCKETS
    this, before = {
        minute & 0xFFFFFFFF: (list(times.counts), list(times.counts_before)),
        minute - 1 & 0xFFFFFFFF: (none, list(times.counts)),
    }.get(times.minute, (none, none))
    rest = 1 - passed_ns / _MINUTE_NS
    counts = [new + rest * old for new, old in zip(this, before, strict=True)]
    return WaitTimes(_quantile(counts, 0.5), _quantile(counts, 0.99)) if sum(counts) > 0 else None


def _quantile(counts: Sequence[float], part: float) -> float:
    """Return what that part of the waits did not exceed, in seconds, as if those of a bucket lay evenly in it."""
    left = part * sum(counts)
    lower_s, upper_s = 0.0, FIRST_S
    for count in counts:
        if left <= count:
            return lower_s + (upper_s - lower_s) * left / count
        left -= count
        lower_s, upper_s = upper_s, 2 * upper_s
    return lower_s
