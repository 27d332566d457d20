"""Tenants that each use two GPUs, with kernels that wait for each other across them, as a collective does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cases import Case, Options
from report import Must, Row
from runs import LATE_S, PROGRAMS, Bench, Launch
from watched import Watched

ALONE = (80, 50, 30, 10)
TOGETHER_S = 5.0  # long enough that both are at it at once for most of it, wherever each begins
KERNELS = 10  # each takes a millisecond before each exchange, like the model's collectives
LEAST_OF_TWO = 47  # percent, of two with half of both GPUs each
NEARLY_ALL = 99  # at this limit it shows what a tenant uses by itself
BARE = "exchanges"  # nothing to do between them


def cases(options: Options) -> Iterator[Case]:
    """A tenant has 97 % of its limit at least, and its speed below what it needs; and two are to finish."""
    limits = tuple(map(int, options.limits)) or ALONE
    measures = {name: partial(_collectives, name=name) for name in COMMANDS} | {BARE: _exchange}
    for name, measure in measures.items():
        if not options.programs or name in options.programs:
            yield Case("two-gpus", name, partial(measure, seconds=options.seconds, limits=limits), gpus=2)


def _spins(bench: Bench, seconds: float, number: int, kernels: int = KERNELS) -> list[str]:
    return [bench.programs.compile("exchange"), str(seconds), str(number), str(kernels)]


def _bare_spins(bench: Bench, seconds: float, number: int) -> list[str]:
    return _spins(bench, seconds, number, 0)


def _all_reduce(bench: Bench, seconds: float, _: int, processes: str) -> list[str]:
    return [bench.programs.torch(), str(PROGRAMS / "all_reduce.py"), processes, str(seconds)]


# Command lines: so many seconds of it, as the first tenant or the second.
COMMANDS: dict[str, Callable[[Bench, float, int], list[str]]] = {
    "collectives": _spins,
    "NCCL, one process": partial(_all_reduce, processes="together"),
    "NCCL, a process for each GPU": partial(_all_reduce, processes="each"),
}


def _exchanges(
    bench: Bench, seconds: float, launches: list[Launch], command: Callable[[Bench, float, int], list[str]]
) -> list[dict[str, Any]]:
    """Return what each printed. Raises RuntimeError when one does not finish."""
    started = [bench.programs.start(command(bench, seconds, number), launch) for number, launch in enumerate(launches)]
    try:
        return [bench.programs.output(process, seconds + LATE_S)[-1] for process in started]
    finally:
        for process in started:
            bench.programs.end(process)


def _per_second(printed: dict[str, Any]) -> float:
    return float(printed["exchanges"]) / float(printed["seconds"])


def _each(printed: list[dict[str, Any]]) -> str:
    """Exchanges in a second, and how long the longest took."""
    return " + ".join(f"{_per_second(each):.0f} (at most {each['longest_ms']:.0f} ms)" for each in printed)


def _exchange(bench: Bench, seconds: float, limits: Sequence[int]) -> Iterator[Row]:
    (unlimited,) = _exchanges(bench, seconds, [bench.native()], _bare_spins)
    alone = _each([unlimited])
    native = _each(_exchanges(bench, TOGETHER_S, [bench.native()] * 2, _bare_spins))
    for library in bench.libraries:
        yield from _bare(bench, seconds, library, limits, unlimited)
        for percent in (50, 100):
            printed = _exchanges(bench, TOGETHER_S, [bench.limited(percent, library)] * 2, _bare_spins)
            musts = [Must("seconds", max(each["seconds"] for each in printed), 0, TOGETHER_S + LATE_S)]
            note = f"exchanges a second: {_each(printed)}; natively {native}, alone {alone}"
            yield Row(BARE, f"{percent} / {percent}", library, (), musts, note=note)


def _collectives(bench: Bench, seconds: float, limits: Sequence[int], name: str) -> Iterator[Row]:
    (unlimited,) = _exchanges(bench, seconds, [bench.native()], COMMANDS[name])
    for library in bench.libraries:
        for percent in limits:
            printed = _exchanges(bench, seconds, [bench.limited(percent, library)], COMMANDS[name])
            share = 100 * _per_second(printed[0]) / _per_second(unlimited)
            musts = [Must("share", share, 0.97 * percent, percent + 1)]
            note = f"exchanges a second: {_each(printed)}; without a limit {_each([unlimited])}"
            yield Row(name, str(percent), library, (share,), musts, note=note)
        if COMMANDS[name] is _spins:
            printed = _exchanges(bench, seconds, [bench.limited(50, library)] * 2, _spins)
            shares = [100 * _per_second(each) / _per_second(unlimited) for each in printed]
            musts = [Must("share", share, LEAST_OF_TWO, 51) for share in shares]
            yield Row(name, "50 / 50", library, shares, musts, note=f"exchanges a second: {_each(printed)}")


def _bare(
    bench: Bench, seconds: float, library: str, limits: Sequence[int], unlimited: dict[str, Any]
) -> Iterator[Row]:
    """They are bound by launches: what they use of a GPU by themselves is what they are charged at 99, by the speed
    that they have there.
    """
    uses_percent = 100.0
    for percent in (NEARLY_ALL, *limits):
        printed, charged_percent = _charged(bench, seconds, bench.limited(percent, library))
        speed_percent = 100 * _per_second(printed) / _per_second(unlimited)
        if percent == NEARLY_ALL and charged_percent > 0:
            uses_percent = min(100.0, 100 * charged_percent / speed_percent)
        musts = [Must("speed", speed_percent, 99 * min(1, percent / uses_percent), float("inf"))]
        note = (
            f"exchanges a second: {_each([printed])}; without a limit {_each([unlimited])}; "
            f"charged {charged_percent:.1f} %, uses {uses_percent:.1f} by itself"
        )
        yield Row(BARE, str(percent), library, (speed_percent,), musts, note=note)


def _charged(bench: Bench, seconds: float, launch: Launch) -> tuple[dict[str, Any], float]:
    """Return the printed line, and the percent charged on the first GPU by then; 0 where that was not seen."""
    with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), bench.gpus[0].uuid) as watched:
        environment = {**launch.environment, "VGPURUN_STATE_DIR": folder}
        (printed,) = _exchanges(bench, seconds, [Launch(launch.prefix, environment)], _bare_spins)
    began_s, length_s = printed["began_at_s"], printed["seconds"]
    return printed, watched.charged_percent(began_s + length_s / 4, began_s + length_s) or 0.0
