"""The page of a run, and its pictures. Drawing needs an extra: call check_extra() first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vgpurun.errors import ExtraError
from vgpurun.profiles import words
from vgpurun.profiles.names import api_name, short_kernel_name
from vgpurun.profiles.summary import Summary
from vgpurun.profiles.units import show_count, show_time
from vgpurun.util.extras import installing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vgpurun.profiles.report_style import Shape

_BARS = 10


@dataclass(frozen=True)
class Picture:
    """A picture: its name in file names, what there is to see in it, and how it is drawn."""

    name: str
    finding: str
    draw: Callable[[Shape, str], Figure]
    note: str = ""


def check_extra() -> None:
    """Raise ExtraError where a package that draws is not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ExtraError(
            f"pages and pictures need {error.name}: {installing('report')}; --format text needs nothing"
        ) from None


def charts(summary: Summary) -> list[Picture]:
    """Return what can be drawn of a run over time; what was not recorded is left out."""
    from vgpurun.profiles import report_charts, report_strip

    found = []
    for number, device in enumerate(summary.devices):
        which = f"GPU {number}: " if len(summary.devices) > 1 else ""
        if device.peak_bytes:
            found.append(
                Picture(
                    f"memory-gpu{number}",
                    f"{which}{words.memory(device)}",
                    lambda shape, title, device=device: report_charts.memory(summary, device, shape, title),  # type: ignore[misc]
                )
            )
        if device.share is not None:
            found.append(
                Picture(
                    f"share-gpu{number}",
                    f"{which}{words.compute(device)}",
                    lambda shape, title, device=device: report_charts.share(summary, device, shape, title),  # type: ignore[misc]
                )
            )
    if summary.lanes:
        found.append(
            Picture(
                "timeline",
                "What ran when: the higher, the larger the part of the time",
                lambda shape, title: report_strip.strip(summary, shape, title),
                report_strip.left_out(summary),
            )
        )
    if summary.copies:
        found.append(
            Picture("copies", words.copies(summary), lambda shape, title: report_charts.copies(summary, shape, title))
        )
    if summary.waits.count:
        found.append(
            Picture("waits", words.waits(summary), lambda shape, title: report_charts.waits(summary, shape, title))
        )
    return found


def tops(summary: Summary) -> list[Picture]:
    """Return the longest bars: APIs and kernels. A page has them in its tables."""
    from vgpurun.profiles import report_charts

    apis = [
        (api_name(api.api), api.duration_ns / 1e9, f"{show_time(api.duration_ns)}, {show_count(api.calls)} calls")
        for api in summary.apis[:_BARS]
    ]
    kernels = [
        (short_kernel_name(kernel.name), kernel.gpu_ns / 1e9, f"{show_time(kernel.gpu_ns)}")
        for kernel in summary.kernels[:_BARS]
        if kernel.gpu_ns
    ]
    found = []
    for name, finding, rows, role in (
        ("apis", "Time in calls of the CUDA driver", apis, "call"),
        ("kernels", "GPU time of kernels", kernels, "gpu"),
    ):
        if rows:
            draw = lambda shape, title, rows=rows, role=role: report_charts.bars(rows, role, shape, title)  # noqa: E731
            found.append(Picture(name, finding, draw))
    return found


def pictures(summary: Summary, file_format: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the file of each picture of a run, as svg or png."""
    from vgpurun.profiles.report_style import WIDE, as_png, as_svg

    for picture in [*charts(summary), *tops(summary)]:
        figure = picture.draw(WIDE, picture.finding)
        yield picture.name, as_png(figure) if file_format == "png" else as_svg(figure, picture.name).encode()


def page(summary: Summary) -> str:
    """Return a run as a page that needs no other file."""
    from vgpurun.profiles.report_page import render

    return render(summary, charts(summary))
