"""The tables of a run, as its page and a terminal show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vgpurun.limits.quota import show_size
from vgpurun.profiles import words
from vgpurun.profiles.lanes import DIRECTIONS
from vgpurun.profiles.model import KernelTotal
from vgpurun.profiles.names import api_name, kernel_name, short_kernel_name
from vgpurun.profiles.series import Axis
from vgpurun.profiles.summary import WAIT_BOUNDS_NS, DeviceSummary, Summary
from vgpurun.profiles.units import show_count, show_rate, show_share, show_time

_ROWS = 12
_MOST_PROCESSES = 40
_POINTS = 24  # in the table beside a picture over time


@dataclass(frozen=True)
class Table:
    """A table: the first column has names. `parts` are the lengths of bars in the second one, from 0 to 1."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    parts: Sequence[float] = ()
    role: str = "call"
    full_names: Sequence[str] = ()
    rest: str = ""


def devices(summary: Summary) -> Table:
    """Return what each GPU was used for, and its limits."""
    rows = [
        [
            f"GPU {number} ({device.uuid})",
            show_size(device.peak_bytes),
            words.memory_limit(device),
            "?" if device.share is None else show_share(device.share),
            words.sm_limit(device),
            show_time(device.gpu_ns) if device.gpu_ns else "?",
        ]
        for number, device in enumerate(summary.devices)
    ]
    columns = ["GPU", "Memory peak", "Memory limit", "Compute", "Compute limit", "GPU time"]
    return Table(columns, rows)


def apis(summary: Summary) -> Table:
    """Return the calls of the functions that took most time."""
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


def kernels(summary: Summary) -> Table:
    """Return the launches of the kernels that took most GPU time."""
    shown, rest = summary.kernels[:_ROWS], summary.kernels[_ROWS:]
    total_ns = sum(kernel.gpu_ns for kernel in summary.kernels)
    has_fill = any(kernel.fill_known_ns for kernel in shown)
    names = [_kernel_name(kernel.name) for kernel in shown]
    rows = [
        [
            name,
            show_time(kernel.gpu_ns),
            show_share(kernel.gpu_ns / total_ns) if total_ns else "",
            show_count(kernel.launches),
            show_time(kernel.gpu_ns / kernel.launches) if kernel.launches else "",
            *([_fill(kernel)] if has_fill else []),
        ]
        for kernel, (name, _) in zip(shown, names, strict=True)
    ]
    time, launches = show_time(sum(kernel.gpu_ns for kernel in rest)), sum(kernel.launches for kernel in rest)
    more = f"{words.plural(len(rest), 'other kernel')}: {time} in {words.plural(launches, 'launch', 'launches')}"
    parts = _parts([kernel.gpu_ns for kernel in shown])
    columns = ["Kernel", "GPU time", "Share", "Launches", "Mean", *(["GPU filled"] if has_fill else [])]
    return Table(columns, rows, parts, "gpu", [full for _, full in names], more if rest else "")


def _fill(kernel: KernelTotal) -> str:
    return show_share(kernel.filled_ns / kernel.fill_known_ns) if kernel.fill_known_ns else ""


def _kernel_name(name: str) -> tuple[str, str]:
    """Return a kernel's name, and what there is to add to it: of a C++ function its arguments."""
    full = kernel_name(name)
    if not set("<(") & set(full):
        return full, ""
    short = short_kernel_name(name)
    return short, full if full != short else ""


def copies(summary: Summary) -> Table:
    """Return the copies of each direction."""
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


def processes(summary: Summary) -> Table:
    """Return the processes by their begin."""
    rows = [
        [
            words.short_command(process.command),
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
    return Table(columns, rows, rest=words.plural(more, "other process", "other processes") if more > 0 else "")


def figures_of(summary: Summary, name: str) -> Table | None:
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
