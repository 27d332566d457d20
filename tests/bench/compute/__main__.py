"""How exact, even and frugal the compute limiter is, measured on this machine's GPU.

python tests/bench/compute [--seconds S] [--only shares|tenants|faults] [--programs A,B] [--limits L,M] [--out DIR]

Prints Markdown tables; --out also writes compute.csv and compute.svg. Each share is a ratio to the same program's
native run, right before it. `make lib` first.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import faults
import report
import shares
import tenants
from runs import Bench

TABLES = {"shares": shares.measure, "tenants": tenants.measure, "faults": faults.measure}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each run")
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--programs", type=_names, default=())
    parser.add_argument("--limits", type=_names, default=(), help="50,75 for shares, 50/50,30/70 for tenants")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[report.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for name in arguments.only or TABLES:
            report.print_heading(name)
            for row in TABLES[name](bench, arguments.seconds, arguments.programs, arguments.limits):
                report.print_row(row)
                rows.append(row)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        report.write_csv(rows, arguments.out / "compute.csv")
        if not report.plot(rows, arguments.out / "compute.svg"):
            print("no plot: matplotlib is not installed")


if __name__ == "__main__":
    main()
