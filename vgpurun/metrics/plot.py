"""A picture of who used the GPUs when, with matplotlib."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from matplotlib import dates
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from vgpurun.errors import HistoryError
from vgpurun.metrics.accounting import Curve, Timeline

# Okabe and Ito's colours, which people with any colour vision tell apart; the last is for all others.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_OTHERS, _OTHERS_COLOUR = "others", "#999999"
_GAP, _GAP_COLOUR = "no exporter ran", "#EEEEEE"
_WIDTH_INCHES, _ROW_INCHES, _FRAME_INCHES = 11.0, 2.6, 1.1
_DPI = 120
_LABEL_WIDTH = 24


def draw(timeline: Timeline, title: str, path: Path) -> None:
    """Write the picture; the file's ending says its kind. Raises HistoryError where it cannot be written."""
    gpus = sorted({(curve.gpu_number, curve.gpu_model) for curve in timeline.curves})
    keys = _shown_keys(timeline.curves)
    figure = Figure(
        figsize=(_WIDTH_INCHES, _FRAME_INCHES + _ROW_INCHES * max(1, len(gpus))), dpi=_DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium")
    rows: Any = figure.subplots(max(1, len(gpus)), 2, sharex=True, squeeze=False)
    for axes, (number, model) in zip(rows, gpus, strict=True):
        of_gpu = [curve for curve in timeline.curves if curve.gpu_number == number and curve.gpu_model == model]
        _draw_gpu(axes, timeline, of_gpu, keys, f"GPU {number} ({model})")
    handles = [Patch(color=_colour(key, keys), label=_label(key)) for key in keys]
    if not all(timeline.is_sampled):
        handles.append(Patch(color=_GAP_COLOUR, label=_GAP))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, max(1, len(handles))), frameon=False)
    try:
        with catch_warnings():
            simplefilter("ignore")  # warnings of letters that the font does not have
            figure.savefig(path)
    except OSError as error:
        raise HistoryError(f"--plot '{path}' cannot be written: {error.strerror or error}") from None


def _draw_gpu(axes: Any, timeline: Timeline, curves: Sequence[Curve], keys: Sequence[str], name: str) -> None:
    zone = datetime.now().astimezone().tzinfo
    moments = [datetime.fromtimestamp(moment_s, zone) for moment_s in timeline.edges_s]
    for panel, values, label in (
        (axes[0], [curve.shares for curve in curves], "GPU time"),
        (axes[1], [[each / 2**30 for each in curve.memory_bytes] for curve in curves], "memory"),
    ):
        stacked: dict[str, list[float]] = {key: [0.0] * len(moments) for key in keys}
        for curve, each in zip(curves, values, strict=True):
            of_key = stacked[curve.key if curve.key in stacked else _OTHERS]
            for place, value in enumerate([*each, each[-1]]):
                of_key[place] += value
        panel.stackplot(
            moments, list(stacked.values()), colors=[_colour(key, keys) for key in keys], step="post", linewidth=0
        )
        for begin, end, is_sampled in zip(moments, moments[1:], timeline.is_sampled, strict=False):
            if not is_sampled:
                panel.axvspan(begin, end, color=_GAP_COLOUR, linewidth=0, zorder=0)
        panel.set_title(f"{name}: {label}", fontsize="small", loc="left")
        panel.set_ylim(bottom=0)
        panel.margins(x=0)
        panel.grid(axis="y", linewidth=0.4)
        locator = dates.AutoDateLocator(tz=zone, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]
    axes[0].set_ylim(0, max(1.0, axes[0].get_ylim()[1]))
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes[1].yaxis.set_major_formatter(StrMethodFormatter("{x:g} GiB"))


def _shown_keys(curves: Sequence[Curve]) -> list[str]:
    """The names with the most use, as many as there are colours, and the others as one."""
    use: dict[str, tuple[float, float]] = {}
    for curve in curves:
        share, memory_bytes = use.get(curve.key, (0.0, 0.0))
        use[curve.key] = share + sum(curve.shares), memory_bytes + sum(curve.memory_bytes)
    ordered = sorted(use, key=lambda key: use[key], reverse=True)
    return ordered if len(ordered) <= len(_COLOURS) else [*ordered[: len(_COLOURS)], _OTHERS]


def _colour(key: str, keys: Sequence[str]) -> str:
    place = keys.index(key)
    return _COLOURS[place] if place < len(_COLOURS) else _OTHERS_COLOUR


def _label(key: str) -> str:
    """A name as it is: to matplotlib a dollar sign begins a formula, and what begins with an underscore is hidden."""
    cut = key if len(key) <= _LABEL_WIDTH else f"{key[: _LABEL_WIDTH - 1]}…"
    return f" {cut}".replace("$", r"\$")
