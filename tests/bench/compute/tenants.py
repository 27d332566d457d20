"""Several programs on one GPU at the same time: what each gets of what one does alone, and all together."""

from __future__ import annotations

from collections.abc import Iterator

from report import Row
from runs import Bench, limit

SETS: tuple[tuple[int | None, ...], ...] = (
    (50, 50),
    (30, 70),
    (20, 40),
    (10, 90),
    (25, 25, 25, 25),
    (100, 100),
    (None, None),
)
PROGRAMS = ("50us", "1ms", "5ms")


def measure(bench: Bench, seconds: float, programs: tuple[str, ...], sets: tuple[str, ...]) -> Iterator[Row]:
    """A row for each program and set of limits. None is without the library: the GPU's own time-slicing."""
    for program in programs or PROGRAMS:
        alone = bench.run(program, seconds)
        for limits in SETS:
            name = " / ".join("native" if percent is None else str(percent) for percent in limits)
            if sets and name.replace(" ", "") not in sets:
                continue
            options = [None if percent is None else limit(percent) for percent in limits]
            runs = bench.together([(program, each) for each in options], seconds)
            yield Row(
                table="tenants",
                case=program,
                limits=name,
                shares=tuple(100 * run.per_second / alone.per_second for run in runs),
                window_deviation_percent=None,
                longest_stall_ms=tuple(run.longest_stall_ms for run in runs),
                native_per_second=alone.per_second,
            )
