"""The median and the 99th percentile of waits, from the histogram that containers write."""

from __future__ import annotations

import pytest

from vgpurun import abi
from vgpurun.limits.wait_times import FIRST_S, WaitTimes, read_wait_times

MINUTE_NS = 60 * 10**9
NOW_NS = 100 * MINUTE_NS + MINUTE_NS // 4  # of the minute before, three quarters lie within the last sixty seconds


def times(minute: int, now: dict[int, int], before: dict[int, int] | None = None) -> abi.WaitTimes:
    made = abi.WaitTimes(minute=minute)
    for bucket, count in now.items():
        made.counts[bucket] = count
    for bucket, count in (before or {}).items():
        made.counts_before[bucket] = count
    return made


def test_nobody_waited() -> None:
    assert read_wait_times(abi.WaitTimes(), NOW_NS) is None
    assert read_wait_times(times(98, {3: 7}), NOW_NS) is None
    assert read_wait_times(times(101, {3: 7}), NOW_NS) is None, "of a minute that is still to come"


def test_within_a_bucket_waits_lie_evenly() -> None:
    assert read_wait_times(times(100, {0: 10}), NOW_NS) == pytest.approx((FIRST_S / 2, 0.99 * FIRST_S))
    assert read_wait_times(times(100, {1: 10}), NOW_NS) == pytest.approx((1.5 * FIRST_S, 1.99 * FIRST_S))


def test_few_long_ones_are_the_99th_percentile() -> None:
    found = read_wait_times(times(100, {0: 980, 14: 20}), NOW_NS)
    assert found is not None and found.median_s < FIRST_S and 0.5 < found.p99_s < 1.1
    found = read_wait_times(times(100, {0: 995, 14: 5}), NOW_NS)
    assert found is not None and found.p99_s < FIRST_S


@pytest.mark.parametrize("made", [times(100, {5: 25}, {0: 100}), times(100, {0: 75, 5: 25})])
def test_of_the_minute_before_a_part_counts(made: abi.WaitTimes) -> None:
    found = read_wait_times(made, NOW_NS)
    expected = WaitTimes(FIRST_S * 50 / 75, FIRST_S * 2**4 * (1 + 24 / 25))
    assert found == pytest.approx(expected)


def test_who_has_not_waited_in_this_minute_did_in_the_one_before() -> None:
    assert read_wait_times(times(99, {2: 8}, {5: 9}), NOW_NS) == pytest.approx((0.000192, 0.00025472))


def test_any_content() -> None:
    made = abi.WaitTimes.from_buffer_copy(b"\xff" * 64)
    assert read_wait_times(made, NOW_NS) is None
    made.minute = 100
    found = read_wait_times(made, NOW_NS)
    assert found is not None and 0 < found.median_s < found.p99_s < 1.1
