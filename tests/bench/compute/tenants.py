"""Several programs on one GPU at the same time: what each gets of what one does alone, and all together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cases import Case, Options
from report import Must, Row
from runs import Bench

NATIVE = ""  # instead of a library's name
SETS: tuple[tuple[int, ...], ...] = (
    (50, 50),
    (30, 70),
    (20, 40),
    (10, 90),
    (25, 25, 25, 25),
    (100, 100),
)
PROGRAMS = ("50us", "1ms", "5ms")
OF_ONE_CONTAINER = "2 of one container"


def cases(options: Options) -> Iterator[Case]:
    """A program beside itself, with each set of limits; natively too, for the GPU's own time-slicing."""
    sets = [each for each in SETS if not options.limits or _name(each).replace(" ", "") in options.limits]
    for program in options.programs or PROGRAMS:
        yield Case("tenants", program, partial(_measure, program=program, seconds=options.seconds, sets=sets))
    if not options.limits:
        yield Case("tenants", OF_ONE_CONTAINER, partial(_measure_one_container, seconds=options.seconds))


def _name(limits: Sequence[int]) -> str:
    return " / ".join(map(str, limits))


def jain(shares: Sequence[float], limits: Sequence[int]) -> float:
    """Jain's index of fairness, of what each gets in parts of its limit: 1 when all get the same part."""
    parts = [share / limit for share, limit in zip(shares, limits, strict=True)]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 0.0


def _musts(limits: tuple[int, ...], shares: Sequence[float]) -> list[Must]:
    expected = (50, 50) if limits == (100, 100) else limits
    musts = [Must("share", share, due - 1, due + 1) for share, due in zip(shares, expected, strict=True)]
    if sum(expected) == 100 and len(set(expected)) == 1:
        musts.append(Must("sum", sum(shares), 97, 101))
    if len(limits) == 4:
        musts.append(Must("Jain", jain(shares, limits), 0.999, 1))
    return musts


def _measure(bench: Bench, program: str, seconds: float, sets: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    alone = bench.run(program, seconds, bench.native()).per_second
    if (100, 100) in sets:
        runs = bench.together(program, [bench.native()] * 2, seconds)
        shares = [100 * run.per_second / alone for run in runs]
        stalls = [run.longest_stall_ms for run in runs]
        yield Row(program, "native / native", NATIVE, shares, (), None, stalls, alone)
    for limits in sets:
        for library in bench.libraries:
            runs = bench.together(program, [bench.limited(percent, library) for percent in limits], seconds)
            shares = [100 * run.per_second / alone for run in runs]
            stalls = [run.longest_stall_ms for run in runs]
            note = f"Jain {jain(shares, limits):.5f}"
            yield Row(program, _name(limits), library, shares, _musts(limits, shares), None, stalls, alone, note)


def _measure_one_container(bench: Bench, seconds: float) -> Iterator[Row]:
    alone = bench.run("50us", seconds, bench.native()).per_second
    for library in bench.libraries:
        started = bench.start("50us", seconds, bench.limited(40, library), copies=2)
        runs = bench.finish(started, seconds)
        shares = [100 * run.per_second / alone for run in runs]
        musts = [Must("sum", sum(shares), 39, 41)]
        stalls = [run.longest_stall_ms for run in runs]
        yield Row(OF_ONE_CONTAINER, "40", library, shares, musts, None, stalls, alone)
