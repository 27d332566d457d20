"""What the limiter costs where it has nothing to limit."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cases import Case, Options
from report import Must, Row
from runs import LATE_S, Bench, Launch
from shares import native_per_second

ROUNDS = 5
OFF_NS = 20  # a launch, without a limit


def cases(options: Options) -> Iterator[Case]:
    """A launch with the library and no limit; launches flat out at 99; and who uses less than the limit anyway."""
    yield Case("cost", "launch", _measure_launch)
    yield Case("cost", "4us", partial(_measure_speed, program="4us", percent=99, seconds=options.seconds, least=98))
    speed = partial(_measure_speed, program="third", percent=50, seconds=options.seconds, least=99)
    yield Case("cost", "30 % by itself", speed)


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


def _measure_speed(bench: Bench, program: str, percent: int, seconds: float, least: float) -> Iterator[Row]:
    before = bench.run(program, seconds, bench.native())
    runs = {name: bench.run(program, seconds, bench.limited(percent, name)) for name in bench.libraries}
    native, note = native_per_second([before, bench.run(program, seconds, bench.native())])
    case = "30 % by itself" if program == "third" else program
    for name, run in runs.items():
        share = 100 * run.per_second / native
        musts = [Must("speed", share, least, float("inf"))]
        yield Row(case, str(percent), name, (share,), musts, None, (run.longest_stall_ms,), native, note)
