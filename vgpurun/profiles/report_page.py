"""The page of a run: one file of HTML with its style and pictures inside, which needs neither network nor script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
from markupsafe import Markup

from vgpurun import __version__
from vgpurun.profiles import report_style, words
from vgpurun.profiles.lanes import DIRECTIONS
from vgpurun.profiles.names import api_name, kernel_name, short_kernel_name
from vgpurun.profiles.report import Picture
from vgpurun.profiles.series import Axis
from vgpurun.profiles.summary import WAIT_BOUNDS_NS, DeviceSummary, Summary
from vgpurun.profiles.units import show_count, show_rate, show_share, show_time
from vgpurun.quota import show_size

_ROWS = 12
_MOST_PROCESSES = 40
_POINTS = 24  # of what is drawn over time, in the table beside the picture


@dataclass(frozen=True)
class Table:
    """A table: the first column has names. `parts` are the lengths of bars in the second one, from 0 to 1."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    parts: Sequence[float] = ()
    role: str = "call"
    full_names: Sequence[str] = ()
    rest: str = ""


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
    return Figure(picture.name, _unbroken(picture.finding), shapes, _figures_of(summary, picture.name), picture.note)


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
        tiles.append(
            (show_time(summary.waits.total_ns), "gate waits", words.plural(summary.waits.count, "launch", "launches"))
        )
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
        Section("gpus", "Memory and compute", found("memory", "share"), _devices(summary)),
        Section("timeline", "Timeline", found("timeline")),
        Section("apis", "Calls of the CUDA driver", table=_apis(summary)),
        Section("kernels", "Kernels", table=_kernels(summary), note=_KERNEL_NOTE if summary.kernels else ""),
        Section("copies", "Copies", found("copies"), _copies(summary), _COPY_NOTE),
        Section("waits", "Waits at the gate", found("waits"), note=_WAIT_NOTE),
        Section("processes", "Processes", table=_processes(summary)),
    ]
    return [section for section in sections if section.figures or (section.table and section.table.rows)]


_KERNEL_NOTE = (
    "GPU time is measured for batches of launches, by the GPU's clock; a kernel has the part of it that its launches "
    "usually take."
)
_COPY_NOTE = (
    "Bandwidth is that of calls which return when their copy is done. An asynchronous call returns earlier: its bytes "
    "count where the call was made."
)
_WAIT_NOTE = "A launch waits here while the container has used up its share, or another container has its turn."


def _devices(summary: Summary) -> Table:
    rows = [
        [
            f"GPU {number}",
            show_size(device.peak_bytes),
            words.memory_limit(device),
            "?" if device.share is None else show_share(device.share),
            words.sm_limit(device),
            show_time(device.gpu_ns) if device.gpu_ns else "?",
        ]
        for number, device in enumerate(summary.devices)
    ]
    columns = ["GPU", "Memory peak", "Memory limit", "Compute", "Compute limit", "GPU time"]
    return Table(columns, rows, full_names=[device.uuid for device in summary.devices])


def _apis(summary: Summary) -> Table:
    shown, rest = summary.apis[:_ROWS], summary.apis[_ROWS:]
    has_failed = any(api.failed for api in shown)
    rows = [
        [
            api_name(api.api),
            show_time(api.duration_ns),
            show_count(api.calls),
            show_time(api.duration_ns / api.calls),
            show_time(api.longest_ns),
            show_size(api.size_bytes) if api.size_bytes else "",
            *([show_count(api.failed) if api.failed else ""] if has_failed else []),
        ]
        for api in shown
    ]
    columns = ["Function", "Time", "Calls", "Mean", "Longest", "Bytes", *(["Failed"] if has_failed else [])]
    time = show_time(sum(api.duration_ns for api in rest))
    more = f"{words.plural(len(rest), 'other function')}: {time} in {show_count(sum(api.calls for api in rest))} calls"
    return Table(columns, rows, _parts([api.duration_ns for api in shown]), "call", rest=more if rest else "")


def _kernels(summary: Summary) -> Table:
    shown, rest = summary.kernels[:_ROWS], summary.kernels[_ROWS:]
    total_ns = sum(kernel.gpu_ns for kernel in summary.kernels)
    names = [_kernel_name(kernel.name) for kernel in shown]
    rows = [
        [
            name,
            show_time(kernel.gpu_ns),
            show_share(kernel.gpu_ns / total_ns) if total_ns else "",
            show_count(kernel.launches),
            show_time(kernel.gpu_ns / kernel.launches) if kernel.launches else "",
        ]
        for kernel, (name, _) in zip(shown, names, strict=True)
    ]
    time, launches = show_time(sum(kernel.gpu_ns for kernel in rest)), sum(kernel.launches for kernel in rest)
    more = f"{words.plural(len(rest), 'other kernel')}: {time} in {words.plural(launches, 'launch', 'launches')}"
    parts = _parts([kernel.gpu_ns for kernel in shown])
    columns = ["Kernel", "GPU time", "Share", "Launches", "Mean"]
    return Table(columns, rows, parts, "gpu", [full for _, full in names], more if rest else "")


def _kernel_name(name: str) -> tuple[str, str]:
    """Return a kernel's name, and what there is to add to it: of a C++ function its arguments."""
    full = kernel_name(name)
    if not set("<(") & set(full):
        return full, ""
    short = short_kernel_name(name)
    return short, full if full != short else ""


def _copies(summary: Summary) -> Table:
    rows = [
        [
            DIRECTIONS[copy.kind].capitalize(),
            show_size(copy.size_bytes),
            show_count(copy.calls),
            show_size(round(copy.size_bytes / copy.calls)),
            "async" if copy.bandwidth is None else show_rate(copy.bandwidth),
        ]
        for copy in summary.copies
    ]
    parts = _parts([copy.size_bytes for copy in summary.copies])
    return Table(["Direction", "Bytes", "Copies", "Mean size", "Bandwidth"], rows, parts, "copy")


def _processes(summary: Summary) -> Table:
    rows = [
        [
            process.command,
            str(process.pid),
            show_time(process.started_ns - summary.fine.begin_ns),
            show_time((process.ended_ns or process.last_ns) - process.started_ns),
            show_count(process.calls),
            show_time(process.gpu_ns),
            show_time(process.wait_ns),
            show_size(process.peak_bytes),
            "ended" if process.ended_ns is not None else "no end",
        ]
        for process in summary.processes[:_MOST_PROCESSES]
    ]
    more = len(summary.processes) - _MOST_PROCESSES
    columns = ["Command", "PID", "Began after", "Ran", "Calls", "GPU time", "Waited", "Memory peak", "End"]
    return Table(columns, rows, rest=words.plural(more, "more process", "more processes") if more > 0 else "")


def _figures_of(summary: Summary, name: str) -> Table | None:
    """Return the figures of a picture as a table, where none stands on the page anyway."""
    kind, _, number = name.partition("-gpu")
    if kind == "memory":
        device = summary.devices[int(number)]
        return _over_time(
            summary.fine, [("Memory in use", device.used_bytes), ("Limit", device.memory_limits)], show_size
        )
    if kind == "share":
        return _share_over_time(summary, summary.devices[int(number)])
    if kind == "timeline":
        rows = [
            [lane.title, str(summary.processes[lane.process].pid), show_time(lane.total_ns)] for lane in summary.lanes
        ]
        return Table(["What", "Process", "Busy"], rows)
    if kind == "waits":
        bounds = [
            f"less than {show_time(WAIT_BOUNDS_NS[0])}",
            *(f"{show_time(bound)} or more" for bound in WAIT_BOUNDS_NS),
        ]
        rows = [[bound, show_count(count)] for bound, count in zip(bounds, summary.waits.by_length, strict=True)]
        return Table(["Wait", "Launches"], rows)
    return None


def _share_over_time(summary: Summary, device: DeviceSummary) -> Table:
    limits = [None if limit is None else limit / 100 for limit in device.sm_limits]
    return _over_time(summary.coarse, [("GPU busy", device.shares), ("Limit", limits)], show_share)


def _over_time(axis: Axis, columns: Sequence[tuple[str, Sequence[float | None]]], show: Any) -> Table:
    every = -(-axis.bins // _POINTS)
    rows = []
    for i in range(0, axis.bins, every):
        values = [column[i] for _, column in columns]
        at = show_time(round(i * axis.bin_ns))
        rows.append(
            [at, *("" if value is None else show(value if show is show_share else round(value)) for value in values)]
        )
    return Table(["After", *(name for name, _ in columns)], rows)


def _parts(values: Sequence[float]) -> list[float]:
    highest = max(values, default=0) or 1
    return [round(value / highest, 4) for value in values]
