"""Several programs on one GPU at the same time: what each gets of what one does alone, and all together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cases import Case, Options
from report import Must, Row
from runs import Bench, Launch

NATIVE = ""  # instead of a library's name
SETS: tuple[tuple[int, ...], ...] = (
    (50, 50),
    (30, 70),
    (20, 40),
    (10, 90),
    (25, 25, 25, 25),
    (100, 100),
    (12,) * 8,
    (4,) * 24,
    (1, 2) * 32,
)
PROGRAMS = ("50us", "1ms", "5ms", "300ms+1ms")  # the last: the first of two has longer kernels
LEAST_TOGETHER = 95  # percent, if all of the GPU is wanted: switching takes time
LEAST_OF_MANY = 90
MOST_LONGER = 2  # an allocation by who has no limit, beside many, than alone
ALLOCATION = "allocation"  # its name in ../programs/kernels.c
OF_ONE_CONTAINER = "2 of one container"
MOST_NAMED = 4


def cases(options: Options) -> Iterator[Case]:
    """A program beside itself, with each set of limits; natively too, for the GPU's own time-slicing."""
    sets = [each for each in SETS if not options.limits or _name(each).replace(" ", "") in options.limits]
    for program in options.programs or PROGRAMS:
        measured = {"program": program, "seconds": options.seconds}
        yield Case("tenants", program, partial(_measure, **measured, sets=sets))
        for limits in sets:
            if len(limits) > MOST_NAMED:
                yield Case("cost", ALLOCATION, partial(_measure_allocations, **measured, limits=limits))
    if not options.limits:
        yield Case("tenants", OF_ONE_CONTAINER, partial(_measure_one_container, seconds=options.seconds))


def _name(limits: Sequence[int]) -> str:
    each = " / ".join(map(str, dict.fromkeys(limits)))
    return f"{len(limits)} x {each}" if len(limits) > MOST_NAMED else " / ".join(map(str, limits))


def jain(shares: Sequence[float], limits: Sequence[int]) -> float:
    """Jain's index of fairness, of what each gets in parts of its limit: 1 when all get the same part."""
    parts = [share / limit for share, limit in zip(shares, limits, strict=True)]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 0.0


def _musts(limits: tuple[int, ...], shares: Sequence[float]) -> list[Must]:
    """Nobody has more than his limit. Where all of the GPU is wanted, each has less by what switches take."""
    expected = (50, 50) if limits == (100, 100) else limits
    wants_all = sum(expected) > LEAST_TOGETHER
    musts = [
        Must("share", share, 0.9 * due if wants_all else due - 1, due + 1)
        for share, due in zip(shares, expected, strict=True)
    ]
    if wants_all:
        least = LEAST_OF_MANY if len(limits) > MOST_NAMED else LEAST_TOGETHER
        musts.append(Must("sum", sum(shares), least, 101))
    return musts


def _measure(bench: Bench, program: str, seconds: float, sets: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    names = program.split("+")
    alone = {name: bench.run(name, seconds, bench.native()).per_second for name in names}
    if (100, 100) in sets:
        yield _row(bench, NATIVE, program, names, [bench.native()] * 2, seconds, alone)
    for limits in sets:
        for library in bench.libraries:
            launches = [bench.limited(percent, library) for percent in limits]
            row = _row(bench, library, program, names, launches, seconds, alone)
            note = f"Jain {jain(row.shares, limits):.5f}"
            yield replace(row, limits=_name(limits), musts=_musts(limits, row.shares), note=note)


def _row(
    bench: Bench, library: str, program: str, names: Sequence[str], launches: Sequence[Launch], seconds: float,
    alone: Mapping[str, float],
) -> Row:  # fmt: skip
    own = [names[min(number, len(names) - 1)] for number in range(len(launches))]
    runs = bench.together(own, launches, seconds)
    shares = [100 * run.per_second / alone[name] for run, name in zip(runs, own, strict=True)]
    stalls = [run.longest_stall_ms for run in runs]
    return Row(program, "native / native", library, shares, (), None, stalls, alone[names[0]])


def _measure_allocations(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    """How long an allocation of 64 MiB takes for a program without a limit, beside all of these."""
    alone = bench.run(ALLOCATION, seconds / 2, bench.native())
    for library in (NATIVE, *bench.libraries):
        launches = [bench.limited(percent, library) if library else bench.native() for percent in limits]
        *_, run = bench.together([program] * len(limits) + [ALLOCATION], [*launches, bench.native()], seconds / 2)
        musts = [Must("median ms", run.median_ms, 0, MOST_LONGER * alone.median_ms)] if library else []
        own, others = (f"median {each.median_ms:.2f} ms, p99 {each.p99_ms:.2f}" for each in (run, alone))
        name = _name(limits) if library else f"{len(limits)} x native"
        yield Row(ALLOCATION, name, library, musts=musts, note=f"{own}; alone {others}")


def _measure_one_container(bench: Bench, seconds: float) -> Iterator[Row]:
    alone = bench.run("50us", seconds, bench.native()).per_second
    for library in bench.libraries:
        started = bench.start("50us", seconds, bench.limited(40, library), copies=2)
        runs = bench.finish(started, seconds)
        shares = [100 * run.per_second / alone for run in runs]
        musts = [Must("sum", sum(shares), 39, 41)]
        stalls = [run.longest_stall_ms for run in runs]
        yield Row(OF_ONE_CONTAINER, "40", library, shares, musts, None, stalls, alone)
