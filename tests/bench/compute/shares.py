"""What a program gets of its unlimited speed under --sm, how evenly, and with which stalls."""

from __future__ import annotations

from collections.abc import Iterator

from report import Row
from runs import KERNELS, MODELS, Bench, limit

LIMITS = (10, 25, 50, 75, 90)
LONG_S = 60.0  # for kernels of 300 ms
EVEN = ("1ms", "50us", "4us", "graph", "sync")  # kernels up to 1 ms: their windows and stalls are looked at


def measure(bench: Bench, seconds: float, programs: tuple[str, ...], limits: tuple[str, ...]) -> Iterator[Row]:
    """A row for each program and limit; a program's native run comes right before its limited ones."""
    for program in programs or (*KERNELS, *MODELS):
        duration_s = min(LONG_S, seconds * 6) if program == "300ms" else seconds
        native = bench.run(program, duration_s)
        for percent in tuple(map(int, limits)) or LIMITS:
            run = bench.run(program, duration_s, limit(percent))
            deviation = run.window_deviation if program in EVEN else None
            yield Row(
                table="shares",
                case=program,
                limits=str(percent),
                shares=(100 * run.per_second / native.per_second,),
                window_deviation_percent=None if deviation is None else 100 * deviation,
                longest_stall_ms=(run.longest_stall_ms,),
                native_per_second=native.per_second,
            )
    if programs:  # these were asked for, and no others
        return
    native = bench.run("third", seconds)
    run = bench.run("third", seconds, limit(50))
    yield Row(
        "shares", "30 % by itself", "50", (100 * run.per_second / native.per_second,), None, (), native.per_second
    )
    native = bench.run("4us", seconds)
    run = bench.run("4us", seconds, limit(99))
    yield Row("shares", "4us", "99", (100 * run.per_second / native.per_second,), None, (), native.per_second)
