"""A request every 20 ms that takes 2 ms of the GPU, with high priority, beside a program that keeps the GPU busy.

Its pauses differ by up to two milliseconds, a slice of the GPU's own time-slicing: if all were as long, each request
would come at the same place of a slice, and the 99th percentile would be the median.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from cases import Case, Options
from report import Must, Row
from runs import START_S, Bench, Launch, Run
from tenants import NATIVE

BESIDE = ("50us", "5ms", "300ms")
LIMITS = (20, 80)  # the request uses 10 by itself
LEAST_SECONDS = 6  # three hundred requests
LONGER = 1.5  # than alone, at most


def cases(options: Options) -> Iterator[Case]:
    """The request alone, and beside each program; natively too."""
    for program in options.programs or BESIDE:
        yield Case("priority", program, partial(_measure, program=program, seconds=max(options.seconds, LEAST_SECONDS)))


def _beside(bench: Bench, program: str, seconds: float, launches: tuple[Launch, Launch]) -> tuple[Run, Run]:
    at_s = time.monotonic() + START_S
    started = [
        bench.start(*each, at_s) for each in zip(("request", program), (seconds, seconds), launches, strict=True)
    ]
    try:
        request, other = (bench.finish(process, seconds)[-1] for process in started)
        return request, other
    finally:
        for process in started:
            bench.programs.end(process)


def _measure(bench: Bench, program: str, seconds: float) -> Iterator[Row]:
    alone = bench.run("request", seconds, bench.native())
    full = bench.run(program, seconds / 4, bench.native()).per_second
    request, other = _beside(bench, program, seconds, (bench.native(), bench.native()))
    yield _row("native / native", NATIVE, program, full, alone, request, other, [])
    for library in bench.libraries:
        high = bench.limited(LIMITS[0], library, "--priority=high")
        low = bench.limited(LIMITS[1], library, "--priority=low")
        request, other = _beside(bench, program, seconds, (high, low))
        musts = [
            Must("p99", request.p99_ms, 0, LONGER * alone.p99_ms),
            Must("share beside", 100 * other.per_second / full, LIMITS[1] - 2, LIMITS[1] + 1),
        ]
        yield _row(" / ".join(map(str, LIMITS)), library, program, full, alone, request, other, musts)


def _row(
    limits: str, library: str, program: str, full: float, alone: Run, request: Run, other: Run, musts: list[Must]
) -> Row:
    shares = [100 * request.per_second / alone.per_second, 100 * other.per_second / full]
    note = (
        f"median {request.median_ms:.1f} ms, p99 {request.p99_ms:.1f} ms; "
        f"alone {alone.median_ms:.1f} and {alone.p99_ms:.1f}"
    )
    return Row(program, limits, library, shares, musts, None, (), full, note)
