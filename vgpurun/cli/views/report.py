"""How `vgpurun report` shows a run in a terminal."""

import shutil
import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console

from vgpurun.cli.views import columns
from vgpurun.cli.views.columns import Column
from vgpurun.profiles import report_tables as tables
from vgpurun.profiles import words
from vgpurun.profiles.report_tables import Table
from vgpurun.profiles.summary import Summary


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
            title, *lines = _lines(table, width)
            console.print()
            console.print(title, style="bold")
            for line in lines:
                console.print(line)
    if summary.waits.count:
        console.print("\nWAITS AT THE GATE", style="bold")
        console.print(words.waits(summary))


def _tables(summary: Summary) -> Iterator[Table]:
    yield tables.devices(summary)
    if len(summary.processes) > 1:
        yield tables.processes(summary)
    yield from (tables.apis(summary), tables.kernels(summary), tables.copies(summary))


def _lines(table: Table, width: int | None) -> list[str]:
    """Return the lines of a table. Names and commands give way in a narrow terminal, figures do not."""
    name, *figures = (title.upper() for title in table.columns)
    titles = [Column(name, can_shrink=True), *(Column(figure, is_right=True) for figure in figures)]
    return columns.lines(titles, table.rows, width) + ([f"and {table.rest}"] if table.rest else [])
