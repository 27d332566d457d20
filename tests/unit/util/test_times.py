"""Moments and durations in docker's ways."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from vgpurun.errors import OptionError
from vgpurun.util import times


@pytest.fixture(autouse=True)
def _berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "CET-1")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("10", None),
        ("", None),
        ("5 m", None),
        ("m", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert times.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 999_400),
        ("1136073845", 1_136_073_845),
        ("1136073845.5", 1_136_073_845.5),
        ("2006-01-02T15:04:05Z", 1_136_214_245),
        ("2006-01-02T15:04:05.123456789Z", 1_136_214_245),
        ("2006-01-02T16:04:05+01:00", 1_136_214_245),
        ("2006-01-02T16:04:05", 1_136_214_245),
        ("2006-01-02T16:04", 1_136_214_240),
        ("2006-01-02", 1_136_156_400),
        ("2006-01-02Z", 1_136_160_000),
    ],
)
def test_moments(text: str, seconds: float) -> None:
    assert times.parse_moment(text, "--since", now_s=1_000_000) == seconds


@pytest.mark.parametrize("text", ["yesterday", "", "2006-13-02", "2006-01-02 15:04", "-5m", "1136073845.", "٣"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(OptionError, match="--since"):
        times.parse_moment(text, "--since")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0 seconds"), (1.9, "1 second"), (59, "59 seconds"), (60, "1 minute"), (3599, "59 minutes"),
     (7200, "2 hours"), (86400, "1 day"), (13 * 86400, "13 days"), (14 * 86400, "2 weeks"), (400 * 86400, "57 weeks")],
)  # fmt: skip
def test_ages(seconds: float, shown: str) -> None:
    assert times.show_age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(299.99, "5 minutes"), (271, "5 minutes"), (269, "4 minutes"), (59.7, "1 minute"), (3599.9, "1 hour"),
     (7199.9, "2 hours"), (86399, "1 day"), (-1, "0 seconds"), (30.2, "30 seconds"), (20 * 86400, "3 weeks")],
)  # fmt: skip
def test_what_is_left_is_shown_to_the_nearest_unit(seconds: float, shown: str) -> None:
    assert times.show_left(seconds) == shown


def test_a_moment_is_shown_as_utc() -> None:
    assert times.show_moment(1_136_214_245) == "2006-01-02T15:04:05Z"
