"""Brings measurements into docs/compute.csv, and the tables that follow from them into docs/compute.md.

python tests/bench/compute/page.py [--check | CSV...]

--check only says whether the page is what docs/compute.csv makes of it. Else what these files have takes the place of
what was measured before, and what they do not have stays. Only the checkout's own library, which `--library` calls
main, is brought in and shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from report import CsvFile, Record, distance, read_csv

DOCS = Path(__file__).parents[3] / "docs"
CSV, PAGE = DOCS / "compute.csv", DOCS / "compute.md"
SHOWN = ("main", "")  # libraries
CASES = {
    "300ms": "kernels of 300 ms",
    "5ms": "kernels of 5 ms",
    "1ms": "kernels of 1 ms",
    "300ms+1ms": "kernels of 300 ms, and kernels of 1 ms",
    "50us": "kernels of 50 µs",
    "4us": "kernels of 4 µs, bound by launches",
    "graph": "graphs of 100 kernels of 10 µs",
    "third": "a kernel of 1 ms, a synchronise and a pause of 2.3 ms",
    "sync": "a kernel of 50 µs, then a synchronise",
    "streams": "4 streams at once, kernels of 200 µs",
    "bursts": "4 streams in bursts of 8 kernels of 1 ms",
    "train": "PyTorch, training of a small transformer",
    "train16": "PyTorch, training with half of that batch: GPU and Python about as fast",
    "generate": "PyTorch, inference at batch size 1, a token at a time: bound by memory",
    "infer": "PyTorch, inference at batch size 1, 2048 tokens",
    "allocation": "64 MiB are allocated and freed without a limit, beside programs with kernels of 5 ms",
    "decode": "PyTorch, inference at batch size 1, 64 tokens: bound by Python",
}
MOST = "most in a second %"
MANY = 4  # beyond so many programs the page has the least and the most
Cell = Callable[[Record], str]


def _case(record: Record) -> str:
    return CASES.get(record["case"], record["case"])


def _share(record: Record) -> str:
    due = f" of {record['due %']}" if record["due %"] and record["due %"] != f"{float(record['limits']):.2f}" else ""
    return (f"**{record['share %']}**" if abs(distance(record)) > 1 else record["share %"]) + due


def _evenness(record: Record) -> str:
    most = f"{record[MOST]} %, " if record[MOST] else ""
    return f"{most}{_stall(record)}"


def _stall(record: Record) -> str:
    return f"{_each(record['longest stall ms'])} ms" if record["longest stall ms"] else ""


def _each(figures: str) -> str:
    parts = figures.split(" / ")
    return figures if len(parts) <= MANY else f"{min(parts, key=float)} to {max(parts, key=float)}"


def _shares_of_all(record: Record) -> str:
    return _each(record["share %"])


def _order(case: str) -> int:
    return list(CASES).index(case) if case in CASES else len(CASES)


def by_limit(records: Sequence[Record], cell: Cell) -> list[list[str]]:
    """A line for each program, a column for each limit."""
    limits = sorted({int(record["limits"]) for record in records})
    lines = [["Work", *map(str, limits)]]
    for case in sorted({record["case"] for record in records}, key=_order):
        own = {int(record["limits"]): record for record in records if record["case"] == case}
        lines.append([CASES.get(case, case), *(cell(own[limit]) if limit in own else "" for limit in limits)])
    return lines


def listed(records: Sequence[Record], **columns: str | Cell) -> list[list[str]]:
    """A line for each measurement."""
    cells = [column if callable(column) else (lambda record, name=column: record[name]) for column in columns.values()]
    return [[name.replace("_", " ") for name in columns], *([cell(record) for cell in cells] for record in records)]


def _shares(records: Sequence[Record]) -> list[list[str]]:
    return by_limit(records, _share)


def _seconds(records: Sequence[Record]) -> list[list[str]]:
    return by_limit(records, _evenness)


def _tenants(records: Sequence[Record]) -> list[list[str]]:
    ordered = sorted(records, key=lambda record: -_order(record["case"]))
    return listed(
        ordered,
        Work=_case,
        Limits="limits",
        Share_of_what_one_does_alone=_shares_of_all,
        Together="sum %",
        Longest_time_without_progress=_stall,
    )


def _faults(records: Sequence[Record]) -> list[list[str]]:
    return listed(records, The_neighbour="case", Share_afterwards="share %", Longest_time_without_progress=_stall)


def _settling(records: Sequence[Record]) -> list[list[str]]:
    return listed(records, From="case", To="limits", Share_from_half_a_second_on="share %", Note="note")


def _others(records: Sequence[Record]) -> list[list[str]]:
    return listed(records, What=_case, Limits="limits", Speed_or_shares="share %", Note="note")


# The blocks of the page: the table that each is made from, and how.
BLOCKS: dict[str, tuple[str, Callable[[Sequence[Record]], list[list[str]]]]] = {
    "shares": ("shares", _shares),
    "seconds": ("shares", _seconds),
    "cost": ("cost", _others),
    "tenants": ("tenants", _tenants),
    "priority": ("priority", _others),
    "faults": ("faults", _faults),
    "settling": ("settling", _settling),
    "two-gpus": ("two-gpus", _others),
    "mps": ("mps", _others),
}


def _sources(records: Sequence[Record]) -> str:
    """Which machine and which code the figures are of, and where there are several, which figures."""
    limits: dict[str, list[str]] = {}
    groups: dict[str, dict[str, list[str]]] = {}
    gpus = dict.fromkeys(record["gpu"] for record in records)
    for record in records:
        limits.setdefault(_case(record), []).append(record["limits"])
        groups.setdefault(record["code"], {}).setdefault(_case(record), []).append(record["limits"])
    if len(groups) == 1:
        return f"{', '.join(gpus)}; code: {', '.join(groups)}."
    parts = []
    for code, cases in groups.items():
        names = [case if own == limits[case] else f"{case} at {', '.join(own)}" for case, own in cases.items()]
        parts.append(f"{code} ({'; '.join(names)})")
    return f"{', '.join(gpus)}; code: {', '.join(parts)}."


def block(name: str, records: Sequence[Record]) -> str:
    """A table of the page, and what it is of."""
    table, lines_of = BLOCKS[name]
    own = [record for record in records if record["table"] == table and record["library"] in SHOWN]
    if not own:
        return "Not measured yet."
    lines = lines_of(own)
    lines.insert(1, ["---"] * len(lines[0]))
    rows = ["|".join(["", *(f" {cell} " if cell != "---" else cell for cell in line), ""]) for line in lines]
    return "\n".join([*rows, "", _sources(own)])


def filled(page: str, records: Sequence[Record]) -> str:
    """The page with all its blocks made anew."""
    return re.sub(
        r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{block(found[2], records)}\n{found[3]}",
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    """Read all, then write both."""
    if sys.argv[1:] == ["--check"]:
        if filled(PAGE.read_text(), read_csv([CSV])) != PAGE.read_text():
            sys.exit(f"docs/compute.md is not what docs/compute.csv says: python {sys.argv[0]}")
        return
    before, records = read_csv([CSV]), read_csv([CSV, *map(Path, sys.argv[1:])])
    file = CsvFile(CSV)
    for record in records:
        if record["library"] in SHOWN or record in before:
            file.write(record)
    PAGE.write_text(filled(PAGE.read_text(), records))


if __name__ == "__main__":
    main()
