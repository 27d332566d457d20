"""Costs of the limiter where it has nothing to limit."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from cases import Case, Options
from phases import measure_in_phases
from report import Must, Row
from runs import LATE_S, Bench, Launch

ROUNDS = 5
NEARLY_ALL = 99  # percent
OFF_NS = 20  # a launch, without a limit
IDLER_LONGER = 2  # than the others


def cases(options: Options) -> Iterator[Case]:
    """A launch with the library and no limit; launches flat out at 99; and who uses less than the limit anyway."""
    yield Case("cost", "launch", _measure_launch)
    yield Case("cost", "4us", partial(_measure_launches_flat_out, seconds=options.seconds))
    yield Case("cost", "30 % by itself", partial(_measure_idler, seconds=options.seconds))


def _measure_launch(bench: Bench) -> Iterator[Row]:
    """In some processes, each of which launches with the library and without, in turns: their median."""
    calls = bench.programs.compile("calls")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in bench.libraries.items():
            usage = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(Path(folder) / name)}
            launch = Launch((), {**bench.native().environment, **usage})
            costs = []
            for _ in range(ROUNDS):
                process = bench.programs.start([calls, str(path), "launch"], launch)
                costs.append(bench.programs.output(process, LATE_S)[-1]["cuLaunchKernel"])
            native_ns, more_ns = (statistics.median(cost[key] for cost in costs) for key in ("native_ns", "more_ns"))
            note = f"{native_ns:.0f} ns natively, {more_ns:+.1f} ns"
            share = 100 * native_ns / (native_ns + more_ns)
            musts = [Must("ns more", more_ns, float("-inf"), OFF_NS)]
            yield Row("launch", "none", name, (share,), musts, None, (), 1e9 / native_ns, note)


def _measure_launches_flat_out(bench: Bench, seconds: float) -> Iterator[Row]:
    """Against no limit in turns in one process: one process of these has 228000 a second, and the next one 236000."""
    for row in measure_in_phases(bench, "4us", seconds, (NEARLY_ALL,)):
        yield _of_speed(row, 98)


def _measure_idler(bench: Bench, seconds: float) -> Iterator[Row]:
    """Under a limit that it does not need and without one, in turns in one process: it sleeps for two thirds of its
    time, and how long that takes differs from one process to the next by a third of what is looked for.
    """
    for row in measure_in_phases(bench, "third", IDLER_LONGER * seconds, (50,)):
        yield replace(_of_speed(row, 99), case="30 % by itself")


def _of_speed(row: Row, least: float) -> Row:
    """The same with its speed as its share."""
    [speed] = [must.value for must in row.musts if must.what == "speed"]
    musts = [Must("speed", speed, least, float("inf"))]
    return replace(row, shares=(speed,), musts=musts, due_percent=None, most_in_a_second_percent=None)
