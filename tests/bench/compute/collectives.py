"""Two tenants that each use two GPUs, with kernels that wait for each other across them, as a collective does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cases import Case, Options
from report import Must, Row
from runs import LATE_S, Bench, Launch

SECONDS = 5  # long enough that both are at it at once for most of it, wherever each begins


def cases(options: Options) -> Iterator[Case]:
    """Both tenants are to finish."""
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


def _each(printed: list[dict[str, Any]]) -> str:
    """Exchanges in a second, and how long the longest took."""
    return " + ".join(
        f"{each['exchanges'] / each['seconds']:.0f} (at most {each['longest_ms']:.0f} ms)" for each in printed
    )


def _measure(bench: Bench) -> Iterator[Row]:
    program = bench.programs.compile("exchange")
    alone = _each(_exchanges(bench, program, [bench.native()]))
    native = _each(_exchanges(bench, program, [bench.native()] * 2))
    for library in bench.libraries:
        for percent in (50, 100):
            printed = _exchanges(bench, program, [bench.limited(percent, library)] * 2)
            musts = [Must("seconds", max(each["seconds"] for each in printed), 0, SECONDS + LATE_S)]
            note = f"exchanges a second: {_each(printed)}; natively {native}, alone {alone}"
            yield Row("collectives", f"{percent} / {percent}", library, (), musts, note=note)
