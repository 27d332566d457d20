"""How `vgpurun report` shows a run in a terminal."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from vgpurun.cli import columns
from vgpurun.cli.columns import Column
from vgpurun.limits.quota import show_size
from vgpurun.profiles import words
from vgpurun.profiles.lanes import DIRECTIONS
from vgpurun.profiles.names import api_name, short_kernel_name
from vgpurun.profiles.summary import Summary
from vgpurun.profiles.units import show_count, show_rate, show_share, show_time

_ROWS = 10
_SEVERAL = 20  # processes that are listed


@dataclass(frozen=True)
class _Table:
    """Rows under titles. Names and commands give way in a narrow terminal, figures do not."""

    names: Sequence[str]
    figures: Sequence[str]
    rows: Sequence[Sequence[str]]
    rest: str = ""

    def lines(self, width: int | None) -> list[str]:
        titles = [Column(name, can_shrink=True) for name in self.names]
        titles += [Column(figure, is_right=True) for figure in self.figures]
        return columns.lines(titles, self.rows, width) + ([self.rest] if self.rest else [])


def print_summary(summary: Summary, file: TextIO | None = None) -> None:
    """Print what happened: in one line, then what the user should know, then tables."""
    is_terminal = file is None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    console = Console(highlight=False, markup=False, emoji=False, file=file, soft_wrap=True)
    console.print(words.title(summary), style="bold")
    console.print(words.outline(summary), style="dim")
    for notice in words.notices(summary):
        console.print(f"! {notice}", style="yellow")
    for table in _tables(summary):
        if table.rows:
            title, *lines = table.lines(width)
            console.print()
            console.print(title, style="bold")
            for line in lines:
                console.print(line)


def _tables(summary: Summary) -> list[_Table]:
    tables = [_devices(summary), _apis(summary), _kernels(summary), _copies(summary), _waits(summary)]
    if len(summary.processes) > 1:
        tables.insert(1, _processes(summary))
    return tables


def _devices(summary: Summary) -> _Table:
    rows = [
        [
            f"{number}: {device.uuid}",
            words.of_limit(show_size(device.peak_bytes), words.memory_limit(device)),
            words.of_limit("?" if device.share is None else show_share(device.share), words.sm_limit(device)),
            show_time(device.gpu_ns) if device.gpu_ns else "?",
        ]
        for number, device in enumerate(summary.devices)
    ]
    return _Table(["GPU"], ["MEMORY PEAK / LIMIT", "COMPUTE / LIMIT", "GPU TIME"], rows)


def _processes(summary: Summary) -> _Table:
    rows = [
        [
            words.short_command(process.command),
            str(process.pid),
            show_time((process.ended_ns or process.last_ns) - process.started_ns),
            show_count(process.calls),
            show_time(process.gpu_ns),
            show_time(process.wait_ns),
            show_size(process.peak_bytes),
            "ended" if process.ended_ns is not None else "no end",
        ]
        for process in summary.processes[:_SEVERAL]
    ]
    more = len(summary.processes) - _SEVERAL
    figures = ["PID", "RAN", "CALLS", "GPU TIME", "WAITED", "MEMORY", "END"]
    return _Table(["PROCESS"], figures, rows, f"and {show_count(more)} more" if more > 0 else "")


def _apis(summary: Summary) -> _Table:
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
    figures = ["TIME", "CALLS", "MEAN", "LONGEST", "BYTES", *(["FAILED"] if has_failed else [])]
    more = f"and {words.plural(len(rest), 'other function')}: {show_time(sum(api.duration_ns for api in rest))}"
    return _Table(["API"], figures, rows, more if rest else "")


def _kernels(summary: Summary) -> _Table:
    shown, rest = summary.kernels[:_ROWS], summary.kernels[_ROWS:]
    total_ns = sum(kernel.gpu_ns for kernel in summary.kernels)
    rows = [
        [
            short_kernel_name(kernel.name),
            show_time(kernel.gpu_ns),
            show_share(kernel.gpu_ns / total_ns) if total_ns else "",
            show_count(kernel.launches),
            show_time(kernel.gpu_ns / kernel.launches) if kernel.launches else "",
        ]
        for kernel in shown
    ]
    more = f"and {words.plural(len(rest), 'other kernel')}: {show_time(sum(kernel.gpu_ns for kernel in rest))}"
    return _Table(["KERNEL"], ["GPU TIME", "SHARE", "LAUNCHES", "MEAN"], rows, more if rest else "")


def _copies(summary: Summary) -> _Table:
    rows = [
        [
            DIRECTIONS[copy.kind],
            show_count(copy.calls),
            show_size(copy.size_bytes),
            "async" if copy.bandwidth is None else show_rate(copy.bandwidth),
        ]
        for copy in summary.copies
    ]
    return _Table(["COPIES"], ["CALLS", "BYTES", "BANDWIDTH"], rows)


def _waits(summary: Summary) -> _Table:
    waits = summary.waits
    if not waits.count:
        return _Table([], [], [])
    times = (waits.total_ns, waits.total_ns / waits.count, waits.longest_ns)
    row = ["launches held back", show_count(waits.count), *map(show_time, times)]
    return _Table(["WAITS AT THE GATE"], ["COUNT", "TOTAL", "MEAN", "LONGEST"], [row])
