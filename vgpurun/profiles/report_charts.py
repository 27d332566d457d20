"""The pictures of a report."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vgpurun.profiles.lanes import DIRECTIONS
from vgpurun.profiles.report_axes import (
    alone,
    bytes_axis,
    drawn_in,
    legend,
    limit_line,
    over_time,
    percent_axis,
    size,
    step_area,
    step_line,
    time_axis,
)
from vgpurun.profiles.report_style import COLOURS, INK, MUTED, SERIES, Shape
from vgpurun.profiles.summary import WAIT_BOUNDS_NS, DeviceSummary, Summary
from vgpurun.profiles.units import show_count, show_rate, show_time

_MOST_STACKED = len(SERIES)
_FAR = 4  # a limit so many times higher than the peak is not in the picture


def memory(summary: Summary, device: DeviceSummary, shape: Shape, title: str = "") -> Figure:
    """Memory in use over time, against the limit: by process where there are several."""
    layers = _layers(summary, device)
    has_limit = device.memory_limit_bytes is not None
    with over_time(shape, 140 if shape.is_narrow else 155, title, len(layers) + 1 + has_limit) as (axes,):
        limit = device.memory_limit_bytes
        is_far = limit is not None and limit > _FAR * device.peak_bytes
        top = device.peak_bytes * 1.15 if limit is None or is_far else max(limit, device.peak_bytes) * 1.15
        bytes_axis(axes, max(top, 1))
        time_axis(axes, shape, summary.fine.duration_s)
        bottoms = [0.0] * summary.fine.bins
        for name, values, colour in layers:
            tops = [bottom + (value or 0) for bottom, value in zip(bottoms, values, strict=True)]
            step_area(axes, summary.fine, tops, bottoms, color=colour, alpha=0.45, label=name)
            bottoms = tops
        used = "container total"
        step_line(axes, summary.fine, device.used_bytes, color=INK, linewidth=1.1, label=used)
        if limit is not None:
            label = f"limit {size(limit)}{', above the picture' if is_far else ''}"
            limit_line(axes, summary.fine, device.memory_limits, label)
        _peak(axes, summary, device, shape)
        legend(axes, shape)
    return drawn_in(axes)


def _layers(summary: Summary, device: DeviceSummary) -> list[tuple[str, Sequence[float | None], str]]:
    """Return the stack: the largest processes, and the others as one."""
    largest = sorted(device.own_bytes, key=lambda own: -max((value or 0 for value in own[1]), default=0))
    shown = sorted(largest[: _MOST_STACKED if len(largest) <= _MOST_STACKED else _MOST_STACKED - 1])
    others = [values for number, values in largest if number not in dict(shown)]
    layers: list[tuple[str, Sequence[float | None], str]] = [
        (f"process {summary.processes[number].pid}", values, SERIES[i]) for i, (number, values) in enumerate(shown)
    ]
    if others:
        added = [sum(value or 0 for value in column) for column in zip(*others, strict=True)]
        layers.append((f"{len(others)} other processes", added, COLOURS["rest"][0]))
    return layers


def _peak(axes: Axes, summary: Summary, device: DeviceSummary, shape: Shape) -> None:
    at_s = device.peak_at_ns / 1e9
    part = at_s / summary.fine.duration_s
    axes.plot([at_s], [device.peak_bytes], "o", color=INK, markersize=4, clip_on=False)
    side, offset = ("left", 5) if part < 0.2 else ("right", -5) if part > 0.8 else ("center", 0)
    axes.annotate(
        f"peak {size(device.peak_bytes)}", (at_s, device.peak_bytes), (offset, 5), textcoords="offset points",
        ha=side, va="bottom", fontsize=shape.font,
    )  # fmt: skip


def share(summary: Summary, device: DeviceSummary, shape: Shape, title: str = "") -> Figure:
    """Draw the share of the GPU's time over time, against the limit."""
    with over_time(shape, 110 if shape.is_narrow else 120, title, named=2) as (axes,):
        percent_axis(axes)
        time_axis(axes, shape, summary.coarse.duration_s)
        percents = [min(100.0, 100 * (part or 0)) for part in device.shares]
        step_area(axes, summary.coarse, percents, color=COLOURS["gpu"][0], alpha=0.45)
        step_line(axes, summary.coarse, percents, color=COLOURS["gpu"][0], linewidth=1.1, label="GPU busy")
        if device.sm_limit_percent < 100:
            limit_line(axes, summary.coarse, device.sm_limits, f"limit {device.sm_limit_percent} %")
        legend(axes, shape)
    return drawn_in(axes)


def copies(summary: Summary, shape: Shape, title: str = "") -> Figure:
    """Bytes copied per second over time: a band for each direction, each to its own scale."""
    count = len(summary.copies)
    with over_time(shape, 66 * count - 10, title, named=1, rows=count, gap=26) as bands:
        for copy, axes in zip(summary.copies, bands, strict=True):
            time_axis(axes, shape, summary.medium.duration_s)
            highest = max(copy.bytes_per_s)
            bytes_axis(axes, max(highest * 1.1, 1), "/s", most=2)
            step_area(axes, summary.medium, copy.bytes_per_s, color=COLOURS["copy"][0], alpha=0.55)
            if axes is not bands[-1]:
                axes.set_xticklabels([])
            words = f"{DIRECTIONS[copy.kind]}, at most {show_rate(highest)}"
            axes.set_title(words, loc="left", fontsize=shape.font, pad=4)
    return drawn_in(bands[0])


def waits(summary: Summary, shape: Shape, title: str = "") -> Figure:
    """Draw how many waits there were, by how long they were."""
    with alone(shape, 150, title) as axes:
        bounds = [show_time(bound).replace(".00", "").replace(".0", "") for bound in WAIT_BOUNDS_NS]
        joint = "\n" if shape.is_narrow else " "
        names = [f"<{joint}{bounds[0]}", *(f"≥{joint}{bound}" for bound in bounds)]
        bars = axes.bar(range(len(names)), summary.waits.by_length, width=0.72, color=COLOURS["wait"][0])
        counts = [show_count(count) if count else "" for count in summary.waits.by_length]
        axes.bar_label(bars, counts, padding=2, fontsize=shape.font)
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", length=0)
        axes.set_yticks([])
        axes.set_ylim(0, max(summary.waits.by_length) * 1.18)
    return drawn_in(axes)


def bars(rows: Sequence[tuple[str, float, str]], role: str, shape: Shape, title: str = "") -> Figure:
    """Bars with a name above each and what they stand for at their ends."""
    with alone(shape, 10 + 30 * len(rows), title) as axes:
        positions = [-i for i in range(len(rows))]
        values = [value for _, value, _ in rows]
        drawn_bars = axes.barh(positions, values, height=0.38, color=COLOURS[role][0])
        axes.bar_label(drawn_bars, [text for *_, text in rows], padding=4, fontsize=shape.font, color=MUTED)
        for position, (name, *_) in zip(positions, rows, strict=True):
            axes.annotate(name, (0, position + 0.24), fontsize=shape.font, va="bottom")
        axes.set_axis_off()
        axes.set_xlim(0, max([*values, 1]) * 1.16)
        axes.set_ylim(-len(rows) + 0.6, 0.8)
    return drawn_in(axes)
