"""The page of a run: one file of HTML with its style and pictures inside, which needs neither network nor script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import jinja2
from markupsafe import Markup

from vgpurun import __version__
from vgpurun.limits.quota import show_size
from vgpurun.profiles import report_style, report_tables, words
from vgpurun.profiles.report import Picture
from vgpurun.profiles.report_tables import Table
from vgpurun.profiles.summary import Summary
from vgpurun.profiles.units import show_count, show_share, show_time


@dataclass(frozen=True)
class Figure:
    """A picture in all shapes, and its figures as a table."""

    name: str
    finding: str
    shapes: Sequence[Markup]
    table: Table | None
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    figures: Sequence[Figure] = field(default_factory=list)
    table: Table | None = None
    note: str = ""


def render(summary: Summary, pictures: Sequence[Picture]) -> str:
    """Return the page."""
    loader = jinja2.PackageLoader("vgpurun.profiles", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("report.html").render(
        light=Markup(report_style.variables(is_dark=False)),
        dark=Markup(report_style.variables(is_dark=True)),
        title=words.title(summary),
        outline=_unbroken(words.outline(summary)),
        notices=words.notices(summary),
        tiles=_tiles(summary),
        sections=_sections(summary, {picture.name: _figure(summary, picture) for picture in pictures}),
        version=__version__,
    )


def _figure(summary: Summary, picture: Picture) -> Figure:
    shapes = []
    for shape in (report_style.WIDE, report_style.NARROW):
        salt = f"{picture.name}-{shape.name}"
        svg = report_style.as_svg(picture.draw(shape, ""), salt)
        shapes.append(Markup(report_style.inline(svg, picture.finding, shape, salt)))
    return Figure(
        picture.name, _unbroken(picture.finding), shapes, report_tables.figures_of(summary, picture.name), picture.note
    )


def _unbroken(text: str) -> str:
    """Keep figures and their units on one line."""
    return re.sub(r"(?<=\d) (?=\D)", "\N{NO-BREAK SPACE}", text)


def _tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """Return what is most important: a figure, what it is, and what it is to be compared with."""
    tiles = [(show_time(summary.duration_ns), "run time", "")]
    if len(summary.devices) == 1:
        (device,) = summary.devices
        if device.share is not None:
            tiles.append((show_share(device.share), "of the GPU's time", _limit(words.sm_limit(device))))
        if device.peak_bytes:
            tiles.append((show_size(device.peak_bytes), "memory peak", _limit(words.memory_limit(device))))
    if summary.launches:
        tiles.append((show_count(summary.launches), "kernel launches", ""))
    if summary.waits.count:
        tiles.append((show_time(summary.waits.total_ns), "throttled", words.plural(summary.waits.count, "wait")))
    if size_bytes := sum(copy.size_bytes for copy in summary.copies):
        tiles.append(
            (show_size(size_bytes), "copied", words.plural(sum(c.calls for c in summary.copies), "copy", "copies"))
        )
    return tiles


def _limit(limit: str) -> str:
    return limit if limit == words.NO_LIMIT else f"limit {limit}"


def _sections(summary: Summary, figures: dict[str, Figure]) -> list[Section]:
    def found(*prefixes: str) -> list[Figure]:
        return [figure for name, figure in figures.items() if name.startswith(prefixes)]

    sections = [
        Section("gpus", "Memory and compute", found("memory", "share"), report_tables.devices(summary)),
        Section("timeline", "Timeline", found("timeline")),
        Section("apis", "Calls of the CUDA driver", table=report_tables.apis(summary)),
        Section(
            "kernels", "Kernels", table=report_tables.kernels(summary), note=_KERNEL_NOTE if summary.kernels else ""
        ),
        Section("copies", "Copies", found("copies"), report_tables.copies(summary), _COPY_NOTE),
        Section("waits", "Waits for the limit", found("waits"), note=_WAIT_NOTE),
        Section("processes", "Processes", table=report_tables.processes(summary)),
    ]
    return [section for section in sections if section.figures or (section.table and section.table.rows)]


_KERNEL_NOTE = (
    "GPU time is measured for batches of launches, by the GPU's clock; a kernel has the part of it that its launches "
    "usually take. Gaps of less than 0.3 ms between launches can be in it: where the GPU waits for the host, it is "
    "more than the kernels themselves took."
)
_COPY_NOTE = (
    "Bandwidth is that of calls which return when their copy is done, waiting for earlier work included. An "
    "asynchronous call (async) returns before: how long its copy takes is not measured, and its bytes count where the "
    "call was made."
)
_WAIT_NOTE = "While the container has used up its share, its work is off the GPU; or launches are held and wait here."
