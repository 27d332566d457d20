"""Figures for people: times, counts, shares and rates with their units."""

from vgpurun.limits.quota import show_size

_TIMES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))


def show_time(duration_ns: float) -> str:
    """Return a duration with three significant digits: "1.23 s", "45.6 ms", "789 µs"."""
    for unit, size_ns in _TIMES:
        if duration_ns >= 0.9995 * size_ns:
            return f"{_three(duration_ns / size_ns)} {unit}"
    return f"{duration_ns:.0f} ns" if duration_ns else "0 s"


def show_count(count: int) -> str:
    """Return a count with its thousands apart."""
    return f"{count:,}"


def show_share(part: float) -> str:
    """Return a part of a whole in percent: "47 %", "0.3 %"."""
    percent = 100 * part
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def show_rate(bytes_per_s: float) -> str:
    """Return a bandwidth in binary units."""
    return f"{show_size(round(bytes_per_s))}/s"


def _three(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
