"""Tenants that each use two GPUs, with kernels that wait for each other across them, as a collective does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cases import Case, Options
from report import Must, Row
from runs import LATE_S, Bench, Launch

ALONE = (80, 50, 30)
SECONDS = 5  # long enough that both are at it at once for most of it, wherever each begins


def cases(options: Options) -> Iterator[Case]:
    """One tenant has nine tenths of its limit at least, and two are to finish."""
    yield Case("two-gpus", "collectives", _measure, gpus=2)


def _exchanges(bench: Bench, program: str, launches: list[Launch]) -> list[dict[str, Any]]:
    """Return what each printed. Raises RuntimeError when one does not finish."""
    started = [
        bench.programs.start([program, str(SECONDS), str(number)], launch) for number, launch in enumerate(launches)
    ]
    try:
        return [bench.programs.output(process, SECONDS + LATE_S)[-1] for process in started]
    finally:
        for process in started:
            bench.programs.end(process)


def _per_second(printed: dict[str, Any]) -> float:
    return float(printed["exchanges"]) / float(printed["seconds"])


def _each(printed: list[dict[str, Any]]) -> str:
    """Exchanges in a second, and how long the longest took."""
    return " + ".join(f"{_per_second(each):.0f} (at most {each['longest_ms']:.0f} ms)" for each in printed)


def _measure(bench: Bench) -> Iterator[Row]:
    program = bench.programs.compile("exchange")
    (unlimited,) = _exchanges(bench, program, [bench.native()])
    alone = _each([unlimited])
    native = _each(_exchanges(bench, program, [bench.native()] * 2))
    for library in bench.libraries:
        for percent in ALONE:
            printed = _exchanges(bench, program, [bench.limited(percent, library)])
            share = 100 * _per_second(printed[0]) / _per_second(unlimited)
            musts = [Must("share", share, 0.9 * percent, percent + 1)]
            note = f"exchanges a second: {_each(printed)}; without a limit {alone}"
            yield Row("collectives", str(percent), library, (share,), musts, note=note)
        for percent in (50, 100):
            printed = _exchanges(bench, program, [bench.limited(percent, library)] * 2)
            musts = [Must("seconds", max(each["seconds"] for each in printed), 0, SECONDS + LATE_S)]
            note = f"exchanges a second: {_each(printed)}; natively {native}, alone {alone}"
            yield Row("collectives", f"{percent} / {percent}", library, (), musts, note=note)
