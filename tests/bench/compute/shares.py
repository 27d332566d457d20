"""The part of its unlimited speed that a program gets under --sm, how evenly, and with which stalls."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cases import Case, Options
from phases import EVEN, ROUNDS, measure_in_phases, share_row
from report import Row
from runs import MODELS, SETTLE_S, Bench, Launch, Run
from watched import Watched

NATIVE_PART = 2  # as short as that are native runs: there is one between any two limits
# The longest come first, so that several GPUs are done at about the same time.
PROGRAMS = ("300ms", *MODELS, "5ms", "1ms", "50us", "4us", "graph", "sync", "streams", "bursts")
LIMITS = (10, 25, 50, 75, 90)
LONG = 6  # times as long, for kernels of 300 ms; and they settle longer: at 10 one that was not known is paid for 3 s
LONG_SETTLE_S = 12.0


def cases(options: Options) -> Iterator[Case]:
    """A program, natively before and after each of its limited runs."""
    limits = tuple(map(int, options.limits)) or LIMITS
    for program in options.programs or PROGRAMS:
        measure = measure_in_phases if program in ROUNDS else _measure
        yield Case("shares", program, partial(measure, program=program, seconds=options.seconds, limits=limits))


def native_per_second(runs: Sequence[Run]) -> tuple[float, str]:
    """The speed of a program in these runs, and how much they differ."""
    speeds = [run.per_second for run in runs]
    mean = statistics.fmean(speeds)
    return mean, f"native runs differ by {100 * (max(speeds) - min(speeds)) / mean:.1f} %"


def _measure(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    length_s, settle_s = (seconds * LONG, LONG_SETTLE_S) if program == "300ms" else (seconds, SETTLE_S)
    natives = [bench.run(program, seconds / NATIVE_PART, bench.native())]
    for percent in limits:
        runs = {
            library: _run_watched(bench, program, length_s, settle_s, bench.limited(percent, library))
            for library in bench.libraries
        }
        natives = [natives[-1], bench.run(program, seconds / NATIVE_PART, bench.native())]
        native, differ = native_per_second(natives)
        if program in EVEN:
            deviation = statistics.fmean(run.window_deviation_percent or 0.0 for run in natives)
            differ += f", their windows deviate by {deviation:.1f} %"
        for library, (run, charged) in runs.items():
            share = 100 * run.per_second / native
            note = f"{charged}; {differ}"
            yield share_row(
                program, percent, library, share, run.window_deviation_percent, run.longest_stall_ms, native, note
            )


def _run_watched(bench: Bench, program: str, seconds: float, settle_s: float, launch: Launch) -> tuple[Run, str]:
    """The run, and what it was charged."""
    with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), bench.gpus[0].uuid) as watched:
        environment = {**launch.environment, "VGPURUN_STATE_DIR": folder}
        run = bench.run(program, seconds, Launch(launch.prefix, environment), settle_s)
    at_s = (run.began_at_s, run.began_at_s + seconds)
    charged, deviation = watched.charged_percent(*at_s), watched.charged_deviation_percent(*at_s)
    if charged is None or deviation is None:
        return run, "what was charged was not seen"
    return run, f"charged {charged:.2f} %, in windows that deviate by {deviation:.1f} %"
