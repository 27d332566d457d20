"""What a program gets of its unlimited speed under --sm, how evenly, and with which stalls."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from adjustable import Adjustable
from cases import Case, Options
from report import Must, Row
from runs import MODELS, SETTLE_S, Bench, Launch, Run
from watched import Watched

FREE_S = 1.5  # without a limit, between its limits
ROUNDS = 2  # of all limits of a model: a host's speed changes within a minute
NATIVE_PART = 2  # as short as that are native runs: there is one between any two limits
NEARLY_ALL = 99  # at this limit it shows what a program uses by itself
# What takes longest comes first, so that several GPUs are done at about the same time.
PROGRAMS = ("300ms", *MODELS, "5ms", "1ms", "50us", "4us", "graph", "sync", "streams", "bursts")
LIMITS = (10, 25, 50, 75, 90)
LONG = 6  # times as long, for kernels of 300 ms; and they settle longer: at 10 one that was not known is paid for 3 s
LONG_SETTLE_S = 12.0
EVEN = ("1ms", "50us", "4us", "graph", "sync")  # kernels up to 1 ms: their windows and stalls are looked at


def cases(options: Options) -> Iterator[Case]:
    """A program, natively before and after each of its limited runs."""
    limits = tuple(map(int, options.limits)) or LIMITS
    for program in options.programs or PROGRAMS:
        measure = _measure_model if program in MODELS else _measure
        yield Case("shares", program, partial(measure, program=program, seconds=options.seconds, limits=limits))


def native_per_second(before: Run, after: Run) -> tuple[float, str]:
    """The speed of a program between two runs, and how much they differ."""
    mean = (before.per_second + after.per_second) / 2
    return mean, f"native runs differ by {100 * abs(after.per_second - before.per_second) / mean:.1f} %"


def _charged_note(percent: float | None) -> str:
    return "" if percent is None else f"charged {percent:.2f} %; "


def _measure(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    length_s, settle_s = (seconds * LONG, LONG_SETTLE_S) if program == "300ms" else (seconds, SETTLE_S)
    before = bench.run(program, seconds / NATIVE_PART, bench.native())
    for percent in limits:
        runs = {
            library: _run_charged(bench, program, length_s, settle_s, bench.limited(percent, library))
            for library in bench.libraries
        }
        after = bench.run(program, seconds / NATIVE_PART, bench.native())
        native, natives = native_per_second(before, after)
        before = after
        for library, (run, charged) in runs.items():
            note = _charged_note(charged) + natives
            share = 100 * run.per_second / native
            deviation = run.window_deviation_percent if program in EVEN else None
            musts = [Must("share", share, percent - 1, percent + 1)]
            if deviation is not None:
                musts.append(Must("windows", deviation, 0, 2))
            if program in EVEN and percent == 50:
                musts.append(Must("stall", run.longest_stall_ms, 0, 25))
            yield Row(program, str(percent), library, (share,), musts, deviation, (run.longest_stall_ms,), native, note)


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
        *rounds, nearly_all = (_Limited(*measured[i - 1 : i + 2]) for i in range(1, len(measured), 2))
        for number, percent in enumerate(limits):
            each = rounds[number :: len(limits)]
            share = statistics.fmean(one.share_percent for one in each)
            note = (
                f"{_charged_note(statistics.fmean(one.charged_percent for one in each))}"
                f"{statistics.fmean(one.unlimited for one in each):.1f}/s without a limit, in the same process; "
                f"charged {nearly_all.charged_percent:.1f} % at {NEARLY_ALL}; "
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


class _Limited:
    """A part under a limit, between two without one."""

    def __init__(self, before: _Phase, limited: _Phase, after: _Phase) -> None:
        self.unlimited = (before.per_second + after.per_second) / 2
        self.share_percent = 100 * limited.per_second / self.unlimited
        self.charged_percent = limited.charged_percent or 0.0
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
