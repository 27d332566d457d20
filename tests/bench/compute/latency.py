"""A request every 20 ms that takes 2 or 0.2 ms of the GPU, with high priority, beside a program that keeps it busy.

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

BESIDE = ("50us", "5ms", "100ms", "300ms")
REQUESTS = {"request": 1.25, "short request": 2.6}  # how many times their p99 alone they may have at most
LIMITS = (20, 80)  # the request uses 10 by itself
LEAST_SECONDS = 6  # three hundred requests


def cases(options: Options) -> Iterator[Case]:
    """Each request alone, and beside each program; natively too."""
    seconds = max(options.seconds, LEAST_SECONDS)
    for beside in options.programs or BESIDE:
        for request in REQUESTS:
            name = beside if request == "request" else f"{beside}, {request}"
            yield Case("priority", name, partial(_measure, name=name, request=request, beside=beside, seconds=seconds))


def _beside(
    bench: Bench, programs: tuple[str, str], seconds: float, launches: tuple[Launch, Launch]
) -> tuple[Run, Run]:
    at_s = time.monotonic() + START_S
    started = [bench.start(program, seconds, launch, at_s) for program, launch in zip(programs, launches, strict=True)]
    try:
        request, other = (bench.finish(process, seconds)[-1] for process in started)
        return request, other
    finally:
        for process in started:
            bench.programs.end(process)


def _measure(bench: Bench, name: str, request: str, beside: str, seconds: float) -> Iterator[Row]:
    alone = bench.run(request, seconds, bench.native())
    full = bench.run(beside, seconds / 4, bench.native()).per_second
    had, other = _beside(bench, (request, beside), seconds, (bench.native(), bench.native()))
    yield _row("native / native", NATIVE, name, full, alone, had, other, [])
    for library in bench.libraries:
        high = bench.limited(LIMITS[0], library, "--priority=high")
        low = bench.limited(LIMITS[1], library, "--priority=low")
        had, other = _beside(bench, (request, beside), seconds, (high, low))
        musts = [
            Must("p99", had.p99_ms, 0, REQUESTS[request] * alone.p99_ms),
            Must("share beside", 100 * other.per_second / full, LIMITS[1] - 2, LIMITS[1] + 1),
        ]
        yield _row(" / ".join(map(str, LIMITS)), library, name, full, alone, had, other, musts)


def _row(
    limits: str, library: str, name: str, full: float, alone: Run, request: Run, other: Run, musts: list[Must]
) -> Row:
    shares = [100 * request.per_second / alone.per_second, 100 * other.per_second / full]
    note = (
        f"median {request.median_ms:.2f} ms, p99 {request.p99_ms:.2f} ms; "
        f"alone {alone.median_ms:.2f} and {alone.p99_ms:.2f}"
    )
    return Row(name, limits, library, shares, musts, None, (), full, note)
