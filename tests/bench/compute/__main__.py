"""How exact, even and frugal the compute limiter is, measured on this machine's GPUs.

python tests/bench/compute [--gpus 0,1|all] [--seconds S] [--only TABLE] [--programs A,B] [--limits L,M]
                           [--library NAME=PATH] [--out DIR]

Prints a Markdown table, a row as soon as it is measured, and last how many rows miss what must hold. --out also writes
compute.csv and compute.svg. Each share is a ratio to the same program's native runs before and after it. Several GPUs
measure at the same time, each a part; the table of two GPUs needs two. Several --library are measured side by side, in
the same run. `make lib` first. The variable CODE names the commit that is measured, where git cannot. `page.py` brings
the tables into docs/compute.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import collectives
import cost
import faults
import latency
import mps_clients
import plots
import report
import settling
import shares
import tenants
from cases import Case, Failed, Options, run_all
from runs import ROOT, Bench, Gpu, Programs, gpus, libraries

TABLES: dict[str, Callable[[Options], Iterator[Case]]] = {
    "shares": shares.cases,
    "tenants": tenants.cases,
    "priority": latency.cases,
    "faults": faults.cases,
    "settling": settling.cases,
    "cost": cost.cases,
    "two-gpus": collectives.cases,
    "mps": mps_clients.cases,
}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _code() -> str:
    """The commit that is measured: as CODE says, or as git does where this is a repository."""
    if given := os.environ.get("CODE"):
        return given
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout if shutil.which("git") else ""
    return found.strip() or "unknown"


def _choose(given: str) -> tuple[Gpu, ...]:
    found = gpus()
    wanted = [str(gpu.index) for gpu in found] if given == "all" else _names(given)
    chosen = tuple(gpu for gpu in found if str(gpu.index) in wanted)
    if not chosen or len(chosen) < len(set(wanted)):
        sys.exit(f"--gpus {given}: this machine has {', '.join(str(gpu.index) for gpu in found) or 'none'}")
    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="0", help="by their index in nvidia-smi, or all; by default 0")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each run; 6 times that for 300ms")
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--programs", type=_names, default=(), help="for shares and tenants; for faults, what happens")
    parser.add_argument("--limits", type=_names, default=(), help="50,75 for shares, 50/50,30/70 for tenants")
    parser.add_argument("--library", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _measure(arguments: argparse.Namespace, bench: Bench) -> bool:
    """Print and write all; whether every case could be measured."""
    options = Options(arguments.seconds, arguments.programs, arguments.limits)
    cases = [case for table in arguments.only or TABLES for case in TABLES[table](options)]
    code, records, failed = _code(), [], []
    file = None if arguments.out is None else report.CsvFile(arguments.out / "compute.csv")
    report.print_heading()
    for result in run_all(cases, bench):
        if isinstance(result, Failed):
            failed.append(result)
            print(f"| {result.case.table} | {result.case.name} | could not be measured: {result.reason} |", flush=True)
            continue
        case, used, row = result
        gpu = used.gpus[0]
        record = row.record(case.table, f"{len(used.gpus)} x {gpu.name}, driver {gpu.driver}", code)
        records.append(record)
        report.print_record(record)
        if file is not None:
            file.write(record)
    print("", *report.summary(records), sep="\n")
    if arguments.out is not None and records and not plots.draw(records, arguments.out / "compute.svg"):
        print("no plot: matplotlib is not installed")
    return not failed


def main() -> None:
    arguments = _arguments()
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            compared = libraries(arguments.library)
        except ValueError as error:
            sys.exit(f"--library {error}")
        programs = Programs(Path(folder))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: programs.stop())
        if not _measure(arguments, Bench(programs, _choose(arguments.gpus), compared)):
            sys.exit(1)


if __name__ == "__main__":
    main()
