"""The shares of the last seconds, from a ring that the container writes."""

from __future__ import annotations

import random

import pytest

from vgpurun import abi
from vgpurun.limits.utilization import Utilization, read_seconds

NOW_S = 100_000
NOW_NS = NOW_S * 10**9 + 400_000_000


def ring(busy_us: dict[int, int]) -> list[int]:
    """A ring with these seconds in it."""
    entries = [0] * abi.SECONDS
    for second, used_us in busy_us.items():
        entries[second % abi.SECONDS] = second << 32 | used_us
    return entries


def test_whole_seconds_before_now() -> None:
    busy = {NOW_S: 400_000, **{NOW_S - age: 250_000 for age in range(1, 61)}}
    assert read_seconds(ring(busy), NOW_NS) == Utilization(25, 25, 25)


def test_each_window_is_of_its_own_length() -> None:
    assert read_seconds(ring({NOW_S - 1: 600_000, NOW_S - 60: 600_000}), NOW_NS) == Utilization(60, 6, 2)
    assert read_seconds(ring({NOW_S - 61: 600_000}), NOW_NS) == Utilization()
    assert read_seconds(ring({NOW_S - 2: 500_000}), NOW_NS) == Utilization(0, 5, pytest.approx(100 * 0.5 / 60))


def test_of_a_young_one_it_is_over_as_long_as_there_was_it() -> None:
    busy = ring({NOW_S - age: 500_000 for age in range(1, 6)})
    assert read_seconds(busy, NOW_NS, age_s=5.4) == Utilization(50, 50, 50)
    assert read_seconds(busy, NOW_NS, age_s=10.4) == Utilization(50, 25, 25)
    assert read_seconds(busy, NOW_NS, age_s=20.4) == Utilization(50, 25, 12.5)
    assert read_seconds(busy, NOW_NS, age_s=0.9) == Utilization(50, 50, 50), "no younger than its work"
    assert read_seconds(ring({}), NOW_NS, age_s=0.4) == read_seconds(ring({}), NOW_NS, age_s=-7.0) == Utilization()


def test_entries_of_other_seconds_count_as_none() -> None:
    old = dict.fromkeys(range(NOW_S - 200, NOW_S - 136), 900000)
    assert read_seconds(ring(old), NOW_NS) == Utilization()


def test_nonsense_stays_between_nothing_and_everything() -> None:
    shuffle = random.Random(1)
    for _ in range(200):
        nonsense = [shuffle.getrandbits(64) for _ in range(abi.SECONDS)]
        used = read_seconds(nonsense, NOW_NS)
        assert all(0 <= share <= 100 for share in (used.last_1s, used.last_10s, used.last_60s))
    assert read_seconds(ring({NOW_S - age: 2**32 - 1 for age in range(1, 61)}), NOW_NS) == Utilization(100, 100, 100)
