"""How `vgpurun report` shows a run in a terminal."""

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from vgpurun.profiles import words
from vgpurun.profiles.lanes import DIRECTIONS
from vgpurun.profiles.names import api_name, short_kernel_name
from vgpurun.profiles.summary import Summary
from vgpurun.profiles.units import show_count, show_rate, show_share, show_time
from vgpurun.quota import show_size

_PIPE_WIDTH = 160  # columns, where there is no terminal to ask
_LEAST_WIDTH = 80
_ROWS = 10
_SEVERAL = 20  # processes that are listed


def print_summary(summary: Summary, file: TextIO | None = None) -> None:
    """Print what happened: in one line, then what the user should know, then tables."""
    is_terminal = file is None and sys.stdout.isatty()
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if is_terminal else _PIPE_WIDTH
    console = Console(highlight=False, markup=False, width=width, file=file)
    console.print(words.title(summary), style="bold", soft_wrap=True)
    console.print(words.outline(summary), style="dim", soft_wrap=True)
    for notice in words.notices(summary):
        console.print(f"! {notice}", style="yellow", soft_wrap=True)
    for table in _tables(summary):
        if table.row_count:
            console.print()
            console.print(table)


def _tables(summary: Summary) -> list[Table]:
    tables = [_devices(summary), _apis(summary), _kernels(summary), _copies(summary), _waits(summary)]
    if len(summary.processes) > 1:
        tables.insert(1, _processes(summary))
    return tables


def _devices(summary: Summary) -> Table:
    table = _table("GPU", "UUID", right=("MEMORY PEAK / LIMIT", "COMPUTE / LIMIT", "GPU TIME"))
    for number, device in enumerate(summary.devices):
        table.add_row(
            str(number),
            device.uuid,
            words.of_limit(show_size(device.peak_bytes), words.memory_limit(device)),
            words.of_limit("?" if device.share is None else show_share(device.share), words.sm_limit(device)),
            show_time(device.gpu_ns) if device.gpu_ns else "?",
        )
    return table


def _processes(summary: Summary) -> Table:
    table = _table("PROCESS", "COMMAND", right=("RAN", "CALLS", "GPU TIME", "WAITED", "MEMORY PEAK"), left=("END",))
    for process in summary.processes[:_SEVERAL]:
        table.add_row(
            str(process.pid),
            process.command,
            show_time((process.ended_ns or process.last_ns) - process.started_ns),
            show_count(process.calls),
            show_time(process.gpu_ns),
            show_time(process.wait_ns),
            show_size(process.peak_bytes),
            "ended" if process.ended_ns is not None else "no end",
        )
    if len(summary.processes) > _SEVERAL:
        table.add_row("", f"{len(summary.processes) - _SEVERAL} more")
    return table


def _apis(summary: Summary) -> Table:
    titles = ["TIME", "CALLS", "MEAN", "LONGEST", "BYTES"]
    has_failed = any(api.failed for api in summary.apis)
    table = _table("API", right=(*titles, *(["FAILED"] if has_failed else [])))
    for api in summary.apis[:_ROWS]:
        cells = [
            show_time(api.duration_ns),
            show_count(api.calls),
            show_time(api.duration_ns / api.calls),
            show_time(api.longest_ns),
            show_size(api.size_bytes) if api.size_bytes else "",
            *([show_count(api.failed) if api.failed else ""] if has_failed else []),
        ]
        table.add_row(api_name(api.api), *cells)
    if len(summary.apis) > _ROWS:
        rest = summary.apis[_ROWS:]
        cells = [show_time(sum(api.duration_ns for api in rest)), show_count(sum(api.calls for api in rest))]
        table.add_row(f"{len(rest)} more", *cells, style="dim")
    return table


def _kernels(summary: Summary) -> Table:
    table = _table("KERNEL", right=("GPU TIME", "SHARE", "LAUNCHES", "MEAN"))
    total_ns = sum(kernel.gpu_ns for kernel in summary.kernels)
    for kernel in summary.kernels[:_ROWS]:
        table.add_row(
            short_kernel_name(kernel.name),
            show_time(kernel.gpu_ns),
            show_share(kernel.gpu_ns / total_ns) if total_ns else "",
            show_count(kernel.launches),
            show_time(kernel.gpu_ns / kernel.launches) if kernel.launches else "",
        )
    if len(summary.kernels) > _ROWS:
        rest = summary.kernels[_ROWS:]
        gpu_ns = sum(kernel.gpu_ns for kernel in rest)
        share = show_share(gpu_ns / total_ns) if total_ns else ""
        launches = show_count(sum(kernel.launches for kernel in rest))
        table.add_row(f"{len(rest)} more", show_time(gpu_ns), share, launches, style="dim")
    return table


def _copies(summary: Summary) -> Table:
    table = _table("COPIES", right=("CALLS", "BYTES", "BANDWIDTH"))
    for copy in summary.copies:
        bandwidth = "async" if copy.bandwidth is None else show_rate(copy.bandwidth)
        table.add_row(DIRECTIONS[copy.kind], show_count(copy.calls), show_size(copy.size_bytes), bandwidth)
    return table


def _waits(summary: Summary) -> Table:
    table = _table("WAITS AT THE GATE", right=("COUNT", "TOTAL", "MEAN", "LONGEST"))
    waits = summary.waits
    if waits.count:
        times = show_time(waits.total_ns), show_time(waits.total_ns / waits.count), show_time(waits.longest_ns)
        table.add_row("launches held back", show_count(waits.count), *times)
    return table


def _table(first: str, *second: str, right: Sequence[str], left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="ellipsis", no_wrap=True, min_width=12)
    for title in second:
        table.add_column(title, overflow="ellipsis", no_wrap=True, max_width=48)
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    for title in left:
        table.add_column(title, no_wrap=True)
    return table
