"""Rows of measurements as a Markdown table and a CSV file, and what they come to."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Record = dict[str, str]  # a row as text, by COLUMNS

COLUMNS = (
    "table",
    "case",
    "limits",
    "library",
    "share %",
    "due %",
    "sum %",
    "most in a second %",
    "longest stall ms",
    "native /s",
    "missed",
    "note",
    "gpu",
    "code",
)
PRINTED = COLUMNS[:-2]


@dataclass(frozen=True)
class Must:
    """A claim that has to hold: a value lies between two others."""

    what: str
    value: float
    least: float
    most: float

    @property
    def missed(self) -> str:
        """Say what is wrong with it; nothing when it holds."""
        holds = self.least <= self.value <= self.most
        return "" if holds else f"{self.what} {self.value:.2f}, not {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Row:
    """A measurement: shares are in percent of the native run beside it, one for each program that ran.

    `due_percent` is what a single one should be, where it is not the limit.
    """

    case: str
    limits: str
    library: str
    shares: Sequence[float] = ()
    musts: Sequence[Must] = ()
    most_in_a_second_percent: float | None = None
    longest_stall_ms: Sequence[float] = ()
    native_per_second: float = 0.0
    note: str = ""
    due_percent: float | None = None

    def record(self, table: str, gpu: str, code: str) -> Record:
        """The row as text."""
        cells = (
            table,
            self.case,
            self.limits,
            self.library,
            " / ".join(f"{share:.2f}" for share in self.shares),
            "" if self.due_percent is None else f"{self.due_percent:.2f}",
            f"{sum(self.shares):.1f}" if len(self.shares) > 1 else "",
            "" if self.most_in_a_second_percent is None else f"{self.most_in_a_second_percent:.1f}",
            " / ".join(f"{stall:.0f}" for stall in self.longest_stall_ms),
            f"{self.native_per_second:.5g}" if self.native_per_second else "",
            "; ".join(must.missed for must in self.musts if must.missed),
            self.note,
            gpu,
            code,
        )
        return dict(zip(COLUMNS, cells, strict=True))


def print_heading() -> None:
    """The head of a Markdown table."""
    print(f"| {' | '.join(PRINTED)} |\n{'|---' * len(PRINTED)}|", flush=True)


def print_record(record: Record) -> None:
    """A line of a Markdown table."""
    print(f"| {' | '.join(record[column] for column in PRINTED)} |", flush=True)


class CsvFile:
    """Takes a row at a time, so that a run that is cut short leaves what it has."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()

    def write(self, record: Record) -> None:
        """Append a row."""
        self._writer.writerow(record)
        self._file.flush()


def read_csv(paths: Iterable[Path]) -> list[Record]:
    """All rows of these files; of what was measured more than once, the last. Raises OSError, ValueError."""
    found: dict[tuple[str, ...], Record] = {}
    for path in paths:
        with path.open(newline="") as file:
            for record in csv.DictReader(file):
                if set(record) != set(COLUMNS):
                    raise ValueError(f"{path} is no compute.csv of this version")
                found[tuple(record[column] for column in COLUMNS[:4])] = record
    return list(found.values())


def distance(record: Record) -> float:
    """How many points a share of the table of shares is off what is due."""
    return float(record["share %"]) - float(record["due %"] or record["limits"])


def summary(records: Sequence[Record]) -> list[str]:
    """How many rows hold; and for each library the median of how far the shares are off."""
    held = sum(not record["missed"] for record in records)
    lines = [f"{held} of {len(records)} rows hold"]
    for library in dict.fromkeys(record["library"] for record in records):
        off = [abs(distance(each)) for each in records if (each["table"], each["library"]) == ("shares", library)]
        if off:
            within = sum(points <= 1 for points in off)
            lines.append(
                f"{library}: shares are off by {statistics.median(off):.2f} points in the median (0.3 at most), "
                f"{max(off):.2f} at worst; {within} of {len(off)} within 1"
            )
    return lines
