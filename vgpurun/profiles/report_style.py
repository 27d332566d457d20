"""How the pictures of a report look: colours for light and dark, sizes for wide and narrow pages; and their files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# By role: the colour on light ground, and on dark. No two on light ground are the same: a page finds the role by it.
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
_PNG_DPI = 160


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


def settings(shape: Shape) -> Any:
    """Return the settings of matplotlib with which a figure of this shape is drawn."""
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
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}), _of_any_script():
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
    with _of_any_script():
        figure.savefig(file, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return file.getvalue()


@contextmanager
def _of_any_script() -> Iterator[None]:
    """Let commands have letters that our font lacks; a browser has other fonts for them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        yield


def inline(svg: str, title: str, shape: Shape, salt: str) -> str:
    """Return an SVG file as an element of a page, in its colours and letters, with a title for screen readers."""
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
