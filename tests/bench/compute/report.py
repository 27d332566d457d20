"""Rows of measurements as a Markdown table, a CSV file and a plot."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One measurement: shares are in percent of the native run beside it, one for each program that ran."""

    table: str
    case: str
    limits: str
    shares: tuple[float, ...]
    window_deviation_percent: float | None
    longest_stall_ms: tuple[float, ...]
    native_per_second: float
    note: str = ""

    def cells(self) -> list[str]:
        """The row as text."""
        return [
            self.case,
            self.limits,
            " / ".join(f"{share:.2f}" for share in self.shares),
            f"{sum(self.shares):.1f}" if len(self.shares) > 1 else "",
            "" if self.window_deviation_percent is None else f"{self.window_deviation_percent:.1f}",
            " / ".join(f"{stall:.0f}" for stall in self.longest_stall_ms),
            f"{self.native_per_second:.5g}",
            self.note,
        ]


HEADINGS = (
    "case",
    "limits",
    "share %",
    "sum %",
    "250 ms windows: deviation %",
    "longest stall ms",
    "native /s",
    "note",
)


def print_heading(table: str) -> None:
    """The head of a Markdown table."""
    print(f"\n{table}\n\n| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|", flush=True)


def print_row(row: Row) -> None:
    """A line of a Markdown table."""
    print(f"| {' | '.join(row.cells())} |", flush=True)


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """All rows, a line each."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("table", *HEADINGS))
        writer.writerows([row.table, *row.cells()] for row in rows)


def plot(rows: Iterable[Row], path: Path) -> bool:
    """How far each share is from its limit, as an SVG. False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = [row for row in rows if row.table == "shares" and row.limits.isdigit() and " " not in row.case]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for case in dict.fromkeys(row.case for row in rows):
        points = [(int(row.limits), row.shares[0] - int(row.limits)) for row in rows if row.case == case]
        axes.plot(*zip(*points, strict=True), marker="o", label=case)
    axes.axhspan(-1, 1, alpha=0.1)
    axes.set(xlabel="limit, percent", ylabel="share minus limit, points", title="How exact --sm is")
    axes.legend(ncols=2, fontsize="small")
    figure.savefig(path)
    return True
