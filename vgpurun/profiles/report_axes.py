"""Axes of pictures over time, with ticks that have units; and what is drawn in steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vgpurun.limits.quota import show_size
from vgpurun.profiles.report_style import COLOURS, Shape, settings
from vgpurun.profiles.series import Axis

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))
# Room around what is drawn, in points.
_WIDE_LEFT, _NARROW_LEFT, _RIGHT = 100, 64, 14
_TITLE, _LINE, _TICKS = 22, 15, 20
# So many parts of a time axis have room for a label such as "1,000 ms" each.
_WIDE_PARTS, _NARROW_PARTS = 6, 4


@contextmanager
def over_time(
    shape: Shape, height: float, title: str = "", named: int = 0, rows: int = 1, gap: float = 0
) -> Iterator[list[Axes]]:
    """Give pairs of axes below each other whose sides are where those of every other picture over time are.

    The height is that of what is drawn, without the title, the legend of `named` things, and the ticks.
    """
    above = (_TITLE if title else 4) + _LINE * -(-named // _legend_columns(shape, named)) + 8
    with _figure(shape, height + above + _TICKS, title) as figure:
        left, right = (_NARROW_LEFT if shape.is_narrow else _WIDE_LEFT), _RIGHT
        full = figure.get_figheight() * 72
        band = (full - above - _TICKS - gap * (rows - 1)) / rows
        yield [
            figure.add_axes(
                (
                    left / shape.width,
                    (_TICKS + (rows - 1 - i) * (band + gap)) / full,
                    1 - (left + right) / shape.width,
                    band / full,
                )
            )
            for i in range(rows)
        ]


@contextmanager
def alone(shape: Shape, height: float, title: str = "") -> Iterator[Axes]:
    """Give one pair of axes that takes all of the room."""
    with _figure(shape, height + (_TITLE if title else 0), title) as figure:
        figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=4 / 72, h_pad=4 / 72))
        yield figure.add_subplot()


def drawn_in(axes: Axes) -> Figure:
    """Return the figure that axes belong to."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    return figure


@contextmanager
def _figure(shape: Shape, height: float, title: str) -> Iterator[Figure]:
    with matplotlib.rc_context(settings(shape)):
        figure = Figure(figsize=(shape.width / 72, height / 72))
        if title:
            figure.suptitle(title, x=6 / shape.width, y=1 - 6 / height, ha="left", va="top", fontweight="bold")
        yield figure


def time_axis(axes: Axes, shape: Shape, duration_s: float) -> None:
    """Let the horizontal axis be the time since the begin of the run; what is drawn is in seconds."""
    unit, size_s = ("ms", 1e-3) if duration_s < 2 else ("s", 1.0) if duration_s < 1200 else ("min", 60.0)
    axes.set_xlim(0, duration_s)
    ticks = _nice_ticks(duration_s / size_s, _NARROW_PARTS if shape.is_narrow else _WIDE_PARTS)
    axes.set_xticks([tick * size_s for tick in ticks], [f"{tick:,g} {unit}" for tick in ticks])
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.grid(axis="x", visible=False)


def bytes_axis(axes: Axes, top: float, suffix: str = "", most: int = 5) -> None:
    """Let the vertical axis be bytes from 0 to `top`, in a binary unit."""
    unit, size = next((each for each in _UNITS if top >= each[1]), _UNITS[-1])
    ticks = _nice_ticks(top / size, most)
    axes.set_ylim(0, max(top, 1))
    axes.set_yticks(
        [tick * size for tick in ticks], ["0" if not tick else f"{tick:g} {unit}{suffix}" for tick in ticks]
    )
    axes.grid(axis="y")


def percent_axis(axes: Axes) -> None:
    """Let the vertical axis be percent."""
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 25, 50, 75, 100], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(axis="y")


def _nice_ticks(top: float, most: int) -> list[float]:
    """Return at most `most` + 1 round figures from 0 to `top`."""
    if top <= 0:
        return [0.0]
    rough = top / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(step * i, 9) for i in range(int(top / step + 1e-9) + 1)]


def step_line(axes: Axes, axis: Axis, values: Sequence[float | None], **look: Any) -> None:
    """Draw a value for each bin as a line of steps, with gaps where there is none."""
    points = _corners(axis, [math.nan if value is None else value for value in values])
    axes.plot([x for x, _ in points], [y for _, y in points], **look)


def step_area(
    axes: Axes, axis: Axis, tops: Sequence[float], bottoms: Sequence[float] | None = None, **look: Any
) -> None:
    """Fill what is between two values for each bin, or between one and 0."""
    points = [*_corners(axis, tops), *reversed(_corners(axis, bottoms or [0.0] * axis.bins))]
    axes.fill([x for x, _ in points], [y for _, y in points], linewidth=0, **look)


def _corners(axis: Axis, values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of steps in seconds; where the value stays there is none, which keeps files small."""
    bin_s = axis.bin_ns / 1e9
    corners: list[tuple[float, float]] = []
    for i, value in enumerate(values):
        if not corners or value != corners[-1][1]:
            if corners:
                corners.append((i * bin_s, corners[-1][1]))
            corners.append((i * bin_s, value))
    return [*corners, (len(values) * bin_s, values[-1])]


def limit_line(axes: Axes, axis: Axis, values: Sequence[float | None], label: str) -> None:
    """Draw a limit that may change, with its name for the legend."""
    step_line(axes, axis, values, color=COLOURS["limit"][0], linewidth=1.3, linestyle=(0, (4, 3)), label=label)


def legend(axes: Axes, shape: Shape) -> None:
    """Put the names of what is drawn above it."""
    handles, _ = axes.get_legend_handles_labels()
    columns = _legend_columns(shape, len(handles))
    left = -(_NARROW_LEFT - 4) / (shape.width - _NARROW_LEFT - _RIGHT) if shape.is_narrow else 0
    axes.legend(loc="lower left", bbox_to_anchor=(left, 1), borderaxespad=0.5, ncols=columns)


def _legend_columns(shape: Shape, named: int) -> int:
    return min(max(1, named), 2 if shape.is_narrow else 4)


def size(value_bytes: float) -> str:
    """Return a size for a label."""
    return show_size(round(value_bytes))
