"""Points in time and durations, as docker's options take and show them."""

import re
import time
from datetime import datetime, timezone

from vgpurun.errors import OptionError

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)"
_TIMESTAMP = r"([0-9]+)(?:\.([0-9]{1,9}))?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
_LONGEST_SPAN_S = 100 * 366 * 86400.0  # an end that no calendar has would be none
_AGES = (("second", 60), ("minute", 60), ("hour", 24), ("day", 14))


def parse_duration(text: str) -> float | None:
    """Read a duration as Go writes it (90s, 1h30m) in seconds, or None when it is none."""
    if not re.fullmatch(f"(?:{_PART})+", text, re.ASCII):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text, re.ASCII))


def parse_moment(text: str, option: str, now_s: float | None = None) -> float:
    """Read a moment in docker's ways: a date and time, seconds since 1970, or a duration before now.

    Returns seconds since 1970. Raises OptionError.
    """
    duration_s = parse_duration(text)
    if duration_s is not None:
        return (time.time() if now_s is None else now_s) - duration_s
    if re.fullmatch(_TIMESTAMP, text, re.ASCII):
        return float(text)
    if match := re.fullmatch(_DATE, text):
        date, zone = text.removesuffix(match.group(5) or ""), match.group(5)
        full = date + "0000-00-00T00:00:00"[len(date) :] if len(date) < 19 else date[:19]
        try:
            moment = datetime.fromisoformat(full + ("" if zone is None else zone.replace("Z", "+00:00")))
        except ValueError:
            raise OptionError(f"{option} '{text}' is not a date and time") from None
        return moment.timestamp()  # without a zone it is this host's, as in docker
    raise OptionError(f"{option} '{text}' is not a time; use e.g. 10m, 2025-01-31T12:00:00, or seconds since 1970")


def read_rfc3339(text: str) -> float:
    """Read the engine's time, which has nine digits behind the point, in seconds since 1970; 0 where it is none."""
    try:
        return datetime.fromisoformat(f"{text[:19]}+00:00").timestamp()
    except ValueError:
        return 0.0


def parse_span(text: str) -> float | None:
    """Read a span of time in seconds, also in days and weeks (7d, 4w), or None when it is none."""
    if match := re.fullmatch(r"([0-9]{1,5})([dw])", text, re.ASCII):
        return int(match[1]) * {"d": 86400.0, "w": 7 * 86400.0}[match[2]]
    return parse_duration(text)


def boot_s() -> float:
    """Return the seconds since the host was started, asleep or not: no setting of the time changes them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def parse_lifetime(lifetime: str | None) -> float | None:
    """Read the value of --for in seconds. Raises OptionError."""
    if lifetime is None:
        return None
    span_s = parse_span(lifetime)
    if not span_s:
        raise OptionError(f"--for '{lifetime}' is not a span of time; use e.g. 30m, 2h or 7d")
    if span_s > _LONGEST_SPAN_S:
        raise OptionError(f"--for '{lifetime}' is more than a hundred years; leave it out where there is no end")
    return span_s


def parse_past(text: str, option: str, now_s: float) -> float:
    """Read a moment as parse_moment does, with spans of days and weeks before now as well.

    Raises OptionError, also for a number before 1973: nobody means so few seconds since 1970, but a year, or days.
    """
    span_s = parse_span(text)
    if re.fullmatch(r"[1-9][0-9]{0,7}", text, re.ASCII):
        raise OptionError(f"{option} '{text}' is neither a date nor has a unit; use e.g. 7d, or 2025-01-31")
    return parse_moment(text, option, now_s) if span_s is None else now_s - span_s


def show_age(seconds: float) -> str:
    """Return a span of time for people, in one unit and no fraction: "5 minutes"."""
    amount = max(0.0, seconds)
    for unit, size in _AGES:
        if amount < size:
            whole = int(amount)
            return f"{whole} {unit}{'s' * (whole != 1)}"
        amount /= size
    return f"{int(seconds / 86400 / 7)} weeks"


def show_left(seconds: float) -> str:
    """Return what is left of a span for people, to the nearest unit: of 5 minutes, "5 minutes" at first."""
    amount = max(0.0, seconds)
    for unit, size in _AGES:
        if (whole := int(amount + 0.5)) < size:
            return f"{whole} {unit}{'s' * (whole != 1)}"
        amount /= size
    return f"{int(seconds / 86400 / 7 + 0.5)} weeks"


def show_moment(seconds: float) -> str:
    """Return a moment as UTC, in ISO 8601."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
