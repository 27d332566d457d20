"""The part of its unlimited speed that a program gets under --sm, how evenly, and with which stalls."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cases import Case, Options
from phases import ROUNDS, measure_in_phases, share_row
from report import Row
from runs import MODELS, Bench, Launch, Run
from watched import Watched

NATIVE_PART = 2  # native runs are as short: before all limits, and after them
# The longest come first, so that several GPUs are done at about the same time.
PROGRAMS = ("300ms", *MODELS, "5ms", "1ms", "50us", "4us", "graph", "sync", "streams", "bursts")
LIMITS = (10, 25, 50, 75, 90)


def cases(options: Options) -> Iterator[Case]:
    """A program, natively before and after its limited runs."""
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
    natives = [bench.run(program, seconds / NATIVE_PART, bench.native())]
    runs = [
        (percent, library, _run_watched(bench, program, seconds, bench.limited(percent, library)))
        for percent in limits
        for library in bench.libraries
    ]
    natives.append(bench.run(program, seconds / NATIVE_PART, bench.native()))
    native, differ = native_per_second(natives)
    for percent, library, (run, charged) in runs:
        share, most = 100 * run.per_second / native, run.most_in_a_second()
        most_percent = None if most is None else 100 * most / native
        yield share_row(
            program, percent, library, share, most_percent, run.longest_stall_ms, native, f"{charged}; {differ}"
        )


def _run_watched(bench: Bench, program: str, seconds: float, launch: Launch) -> tuple[Run, str]:
    """The run, and what it was charged."""
    with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), bench.gpus[0].uuid) as watched:
        environment = {**launch.environment, "VGPURUN_STATE_DIR": folder}
        run = bench.run(program, seconds, Launch(launch.prefix, environment))
    charged = watched.charged_percent(run.began_at_s, run.began_at_s + seconds)
    return run, "what was charged was not seen" if charged is None else f"charged {charged:.2f} %"
