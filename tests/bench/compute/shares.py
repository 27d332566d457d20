"""What a program gets of its unlimited speed under --sm, how evenly, and with which stalls."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from adjustable import Adjustable
from cases import Case, Options
from report import Must, Row
from runs import MODELS, SETTLE_S, Bench, Launch, Run
from watched import Watched

FREE_S = 2.5  # without a limit, between its limits
ROUNDS = 2  # of all limits of a model: a host's speed changes within a minute
NATIVE_PART = 2  # as short as that are native runs: there is one between any two limits
NEARLY_ALL = 99  # at this limit it shows what a program uses by itself
# What takes longest comes first, so that several GPUs are done at about the same time.
PROGRAMS = ("300ms", *MODELS, "5ms", "1ms", "50us", "4us", "graph", "sync", "streams", "bursts")
LIMITS = (10, 25, 50, 75, 90)
LONG = 6  # times as long, for kernels of 300 ms; and they settle longer: at 10 one that was not known is paid for 3 s
LONG_SETTLE_S = 12.0
BOUND_BY_HOST = ("4us",)  # its speed changes with the host's, from one second to the next
HOST_ROUNDS = 4
EVEN = ("1ms", "50us", "4us", "graph", "sync")  # kernels up to 1 ms: their windows and stalls are looked at


def cases(options: Options) -> Iterator[Case]:
    """A program, natively before and after each of its limited runs."""
    limits = tuple(map(int, options.limits)) or LIMITS
    for program in options.programs or PROGRAMS:
        measure = _measure_model if program in MODELS else _measure
        yield Case("shares", program, partial(measure, program=program, seconds=options.seconds, limits=limits))


def native_per_second(runs: Sequence[Run]) -> tuple[float, str]:
    """The speed of a program in these runs, and how much they differ."""
    speeds = [run.per_second for run in runs]
    mean = statistics.fmean(speeds)
    return mean, f"native runs differ by {100 * (max(speeds) - min(speeds)) / mean:.1f} %"


@dataclass(frozen=True)
class _Limited:
    """What a program did under a limit, against what it did without one before and after."""

    share_percent: float
    charged_percent: float | None
    run: Run


def _charged_note(limited: Sequence[_Limited] | Sequence[_LimitedPhase]) -> str:
    known = [each.charged_percent for each in limited if each.charged_percent is not None]
    return f"charged {statistics.fmean(known):.2f} %; " if known else ""


def _measure(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    length_s, settle_s = (seconds * LONG, LONG_SETTLE_S) if program == "300ms" else (seconds, SETTLE_S)
    rounds = HOST_ROUNDS if program in BOUND_BY_HOST else 1
    native_s = seconds / max(rounds, NATIVE_PART)
    natives = [bench.run(program, native_s, bench.native())]
    for percent in limits:
        found: dict[str, list[_Limited]] = {library: [] for library in bench.libraries}
        natives = natives[-1:]
        for _ in range(rounds):
            runs = {
                library: _run_charged(bench, program, length_s / rounds, settle_s, bench.limited(percent, library))
                for library in bench.libraries
            }
            natives.append(bench.run(program, native_s, bench.native()))
            native, _ = native_per_second(natives[-2:])
            for library, (run, charged) in runs.items():
                found[library].append(_Limited(100 * run.per_second / native, charged, run))
        native, differ = native_per_second(natives)
        if program in EVEN:
            differ += f", their windows deviate by {_deviation_percent(natives):.1f} %"
        for library, limited in found.items():
            yield _row(program, percent, library, limited, native, _charged_note(limited) + differ)


def _deviation_percent(runs: Sequence[Run]) -> float:
    return statistics.fmean(run.window_deviation_percent or 0.0 for run in runs)


def _row(program: str, percent: int, library: str, limited: Sequence[_Limited], native: float, note: str) -> Row:
    share = statistics.fmean(each.share_percent for each in limited)
    stall_ms = max(each.run.longest_stall_ms for each in limited)
    musts = [Must("share", share, percent - 1, percent + 1)]
    deviation = None
    if program in EVEN:
        deviation = _deviation_percent([each.run for each in limited])
        musts.append(Must("windows", deviation, 0, 2))
    if program in EVEN and percent == 50:
        musts.append(Must("stall", stall_ms, 0, 25))
    return Row(program, str(percent), library, (share,), musts, deviation, (stall_ms,), native, note)


def _run_charged(
    bench: Bench, program: str, seconds: float, settle_s: float, launch: Launch
) -> tuple[Run, float | None]:
    """The run, and what it was charged, in percent of its time."""
    with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), bench.gpus[0].uuid) as watched:
        environment = {**launch.environment, "VGPURUN_STATE_DIR": folder}
        run = bench.run(program, seconds, Launch(launch.prefix, environment), settle_s)
    return run, watched.charged_percent(run.began_at_s, run.began_at_s + seconds)


def _measure_model(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    """A program that the host's speed decides differs by a third from one process to the next, also natively.

    So each limit is compared with the time without one before and after it, in the same process.
    """
    native = bench.run(program, seconds, bench.native()).per_second
    for library in bench.libraries:
        with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), bench.gpus[0].uuid) as watched:
            limited = Adjustable(bench, library, Path(folder), None)
            phases: list[tuple[int | None, float]] = [(None, FREE_S)]
            for percent, length_s in (
                *((each, seconds / ROUNDS) for each in limits * ROUNDS),
                (NEARLY_ALL, 2 * FREE_S),
            ):
                phases += [(percent, length_s), (None, FREE_S)]
            run, began_s = _run_phases(bench, program, limited, phases)
        measured = [
            _Phase(run, watched, at_s + SETTLE_S, length_s) for at_s, (_, length_s) in zip(began_s, phases, strict=True)
        ]
        *rounds, nearly_all = (_LimitedPhase(*measured[i - 1 : i + 2]) for i in range(1, len(measured), 2))
        for number, percent in enumerate(limits):
            each = rounds[number :: len(limits)]
            share = statistics.fmean(one.share_percent for one in each)
            note = (
                f"{_charged_note(each)}"
                f"{statistics.fmean(one.unlimited for one in each):.1f}/s without a limit, in the same process; "
                f"charged {nearly_all.charged_percent or 0:.1f} % at {NEARLY_ALL}; "
                f"{each[-1].clock_mhz:.0f} MHz, without a limit {each[-1].unlimited_clock_mhz:.0f}"
            )
            musts = [Must("share", share, percent - 1, percent + 1)]
            yield Row(program, str(percent), library, (share,), musts, None, (), native, note)


class _Phase:
    """What a program did in a part of its run."""

    def __init__(self, run: Run, watched: Watched, from_s: float, seconds: float) -> None:
        at_s = (run.began_at_s + from_s, run.began_at_s + from_s + seconds)
        self.per_second = run.per_second_between(from_s, from_s + seconds)
        self.charged_percent = watched.charged_percent(*at_s)
        self.clock_mhz = watched.clock_mhz(*at_s)


class _LimitedPhase:
    """A part under a limit, between two without one."""

    def __init__(self, before: _Phase, limited: _Phase, after: _Phase) -> None:
        self.unlimited = (before.per_second + after.per_second) / 2
        self.share_percent = 100 * limited.per_second / self.unlimited
        self.charged_percent = limited.charged_percent
        self.clock_mhz, self.unlimited_clock_mhz = limited.clock_mhz, before.clock_mhz


def _run_phases(
    bench: Bench, program: str, limited: Adjustable, phases: list[tuple[int | None, float]]
) -> tuple[Run, list[float]]:
    """The run, and when in it each limit began."""
    length_s = sum(SETTLE_S + seconds for _, seconds in phases)
    process = bench.start(program, length_s, limited.launch)
    bench.wait_until_it_begins(process)
    changed_s = []
    for percent, seconds in phases:
        limited.set(percent)
        changed_s.append(time.monotonic())
        time.sleep(SETTLE_S + seconds)
    run = bench.finish(process, length_s)[-1]
    return run, [max(0.0, each_s - run.began_at_s) for each_s in changed_s]
