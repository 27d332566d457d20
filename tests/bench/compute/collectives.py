"""Two tenants that each use two GPUs, with kernels that wait for each other across them, as a collective does."""

from __future__ import annotations

from collections.abc import Iterator

from cases import Case, Options
from report import Must, Row
from runs import LATE_S, Bench, Launch

EXCHANGES = 50


def cases(options: Options) -> Iterator[Case]:
    """Both tenants are to finish."""
    yield Case("two-gpus", "collectives", _measure, gpus=2)


def _seconds(bench: Bench, program: str, launches: list[Launch]) -> list[float]:
    """How long each took. Raises RuntimeError when one does not finish."""
    started = [
        bench.programs.start([program, str(EXCHANGES), str(number)], launch) for number, launch in enumerate(launches)
    ]
    try:
        return [bench.programs.output(process, LATE_S)[-1]["seconds"] for process in started]
    finally:
        for process in started:
            bench.programs.end(process)


def _measure(bench: Bench) -> Iterator[Row]:
    program = bench.programs.compile("exchange")
    alone = _seconds(bench, program, [bench.native()])[0]
    native = _seconds(bench, program, [bench.native()] * 2)
    for library in bench.libraries:
        for percent in (50, 100):
            taken = _seconds(bench, program, [bench.limited(percent, library)] * 2)
            musts = [Must("seconds", max(taken), 0, LATE_S)]
            note = (
                f"{EXCHANGES} exchanges each in {1000 * max(taken):.1f} ms; "
                f"natively {1000 * max(native):.1f} ms, alone {1000 * alone:.1f} ms"
            )
            yield Row("collectives", f"{percent} / {percent}", library, (), musts, note=note)
