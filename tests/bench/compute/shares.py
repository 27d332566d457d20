"""What a program gets of its unlimited speed under --sm, how evenly, and with which stalls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cases import Case, Options
from report import Must, Row
from runs import MODELS, Bench, Run

# What takes longest comes first, so that several GPUs are done at about the same time.
PROGRAMS = ("300ms", *MODELS, "5ms", "1ms", "50us", "4us", "graph", "sync", "streams", "bursts")
LIMITS = (10, 25, 50, 75, 90)
LONG = 6  # times as long, for kernels of 300 ms
EVEN = ("1ms", "50us", "4us", "graph", "sync")  # kernels up to 1 ms: their windows and stalls are looked at


def cases(options: Options) -> Iterator[Case]:
    """A program, natively before and after its limited runs."""
    limits = tuple(map(int, options.limits)) or LIMITS
    for program in options.programs or PROGRAMS:
        yield Case("shares", program, partial(_measure, program=program, seconds=options.seconds, limits=limits))


def native_per_second(before: Run, after: Run) -> tuple[float, str]:
    """The speed of a program between two runs, and how much they differ."""
    mean = (before.per_second + after.per_second) / 2
    return mean, f"native runs differ by {100 * abs(after.per_second - before.per_second) / mean:.1f} %"


def _measure(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    length_s = seconds * LONG if program == "300ms" else seconds
    before = bench.run(program, seconds, bench.native())
    runs = {
        (percent, library): bench.run(program, length_s, bench.limited(percent, library))
        for percent in limits
        for library in bench.libraries
    }
    native, note = native_per_second(before, bench.run(program, seconds, bench.native()))
    for (percent, library), run in runs.items():
        share = 100 * run.per_second / native
        deviation = run.window_deviation_percent if program in EVEN else None
        musts = [Must("share", share, percent - 1, percent + 1)]
        if deviation is not None:
            musts.append(Must("windows", deviation, 0, 2))
        if program in EVEN and percent == 50:
            musts.append(Must("stall", run.longest_stall_ms, 0, 25))
        yield Row(program, str(percent), library, (share,), musts, deviation, (run.longest_stall_ms,), native, note)
