"""How the pictures of a report look: colours for light and dark, sizes for wide and narrow pages, ticks with units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vgpurun.profiles.series import Axis
from vgpurun.quota import show_size

# By role: the colour on light ground, and on dark.
COLOURS: Mapping[str, tuple[str, str]] = {
    "ground": ("#fefefe", "#15181d"),
    "ink": ("#1c2128", "#e8eaed"),
    "muted": ("#57606b", "#a2abb6"),
    "grid": ("#dfe3e8", "#333a44"),
    "limit": ("#c42b36", "#ff8088"),
    "gpu": ("#0a7a66", "#3ccfae"),
    "wait": ("#b86a00", "#f2b04a"),
    "copy": ("#2a67c9", "#74abff"),
    "call": ("#7656b3", "#b9a1ec"),
    "rest": ("#8a939e", "#7d8794"),
    "series1": ("#2a67c8", "#74abfe"),
    "series2": ("#0a7a65", "#3ccfad"),
    "series3": ("#b86a01", "#f2b04b"),
    "series4": ("#7656b2", "#b9a1eb"),
    "series5": ("#ad3e74", "#f08dbb"),
    "series6": ("#566b12", "#b6cf5a"),
}
INK, MUTED, GRID, GROUND = (COLOURS[role][0] for role in ("ink", "muted", "grid", "ground"))
SERIES = tuple(COLOURS[f"series{number}"][0] for number in range(1, 7))

_BY_LIGHT = {light: role for role, (light, _) in COLOURS.items()}
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))
_PNG_DPI = 160

# Room around what is drawn, in points.
_WIDE_LEFT, _NARROW_LEFT, _RIGHT = 100, 64, 14
_TITLE, _LINE, _TICKS = 22, 15, 20


@dataclass(frozen=True)
class Shape:
    """The width of a picture and the size of its letters, in points: a page shows each picture in both shapes."""

    name: str
    width: float
    font: float

    @property
    def is_narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.name == "narrow"


WIDE = Shape("wide", 720, 9.5)
NARROW = Shape("narrow", 350, 11)


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
    with matplotlib.rc_context(_settings(shape)):
        figure = Figure(figsize=(shape.width / 72, height / 72))
        if title:
            figure.suptitle(title, x=6 / shape.width, y=1 - 6 / height, ha="left", va="top", fontweight="bold")
        yield figure


def _settings(shape: Shape) -> Any:
    return {
        "font.family": "DejaVu Sans",
        "font.size": shape.font,
        "text.color": INK,
        "axes.edgecolor": GRID,
        "axes.facecolor": "none",
        "axes.labelcolor": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "figure.facecolor": GROUND,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "legend.columnspacing": 1.4,
        "legend.frameon": False,
        "legend.fontsize": shape.font,
        "legend.handlelength": 1.2,
        "legend.handleheight": 0.8,
        "legend.borderpad": 0,
        "legend.borderaxespad": 0.2,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "xtick.labelsize": shape.font,
        "ytick.labelsize": shape.font,
        "svg.fonttype": "none",
        "text.parse_math": False,
    }


def as_svg(figure: Figure, salt: str) -> str:
    """Return a figure as an SVG file, whose ids are its own and whose coordinates have one decimal."""
    file = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]*', _shorter_path, text)
    return re.sub(r'(?<= (?:x|y)=")(-?\d+\.\d)\d+', r"\1", text)


def _shorter_path(match: re.Match[str]) -> str:
    return re.sub(r"(\d+\.\d)\d+", r"\1", match.group()).replace("\n", "")


def as_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return file.getvalue()


def inline(svg: str, title: str, shape: Shape, salt: str) -> str:
    """Return an SVG file as an element of a page that takes its colours and letters, with a title for who hears it."""
    from html import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda match: _variable(match.group()), body)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda match: match.group() if match.group(1) in used else "", body)
    body = re.sub(r"font-family: [^;\"]*;?", "", body)
    view = re.search(r'viewBox="[^"]*"', body)
    assert view
    opening = f'<svg class="{shape.name}" {view.group()} role="img" aria-labelledby="{salt}-title">'
    return opening + f'<title id="{salt}-title">{escape(title)}</title>' + body[body.index(">") + 1 :]


def _variable(colour: str) -> str:
    role = _BY_LIGHT.get(colour)
    return f"var(--{role})" if role else colour


def variables(is_dark: bool) -> str:
    """Return the colours as CSS."""
    return " ".join(f"--{role}: {both[is_dark]};" for role, both in COLOURS.items())


def time_axis(axes: Axes, duration_s: float) -> None:
    """Let the horizontal axis be the time since the begin of the run; what is drawn is in seconds."""
    unit, size_s = ("ms", 1e-3) if duration_s < 2 else ("s", 1.0) if duration_s < 1200 else ("min", 60.0)
    axes.set_xlim(0, duration_s)
    ticks = _nice_ticks(duration_s / size_s, 6)
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


def percent_axis(axes: Axes, top: float = 100) -> None:
    """Let the vertical axis be percent."""
    axes.set_ylim(0, top)
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
