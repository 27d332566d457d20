"""How soon a program has its share: from idle, and after `vgpurun update --sm`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from adjustable import Adjustable
from cases import Case, Options
from report import Must, Row
from runs import START_S, Bench, Run

PROGRAM = "50us"
PHASE_S = 3.0
SOON_S = 0.5
WINDOW_S = 0.25
CLOSE = 5.0  # points: from then on no such window is further off
LIMITS = (50, 20, 80)  # in this order


def cases(options: Options) -> Iterator[Case]:
    """A program begins from idle, and its limit changes twice."""
    yield Case("settling", PROGRAM, _measure)


def _settled_after_s(run: Run, from_s: float, native: float, percent: int) -> float:
    """From when on each window is close to the limit."""
    windows = run.windows(WINDOW_S, from_s, from_s + PHASE_S)
    far = [i for i, window in enumerate(windows) if abs(100 * window / native - percent) > CLOSE]
    return (far[-1] + 1) * run.sample_s if far else 0.0


def _run(bench: Bench, library: str, folder: Path) -> tuple[Run, list[float]]:
    """The run, and when in it each limit began."""
    limited = Adjustable(bench, library, folder, LIMITS[0])
    seconds = PHASE_S * len(LIMITS)
    at_s = time.monotonic() + START_S
    process = bench.start(PROGRAM, seconds, limited.launch, at_s, settle_s=0)
    changed_s = [at_s]
    for number, percent in enumerate(LIMITS[1:], 1):
        time.sleep(max(0.0, at_s + number * PHASE_S - time.monotonic()))
        changed_s.append(time.monotonic())
        limited.set(percent)
    run = bench.finish(process, seconds)[-1]
    return run, [max(0.0, each_s - run.began_at_s) for each_s in changed_s]


def _measure(bench: Bench) -> Iterator[Row]:
    native = bench.run(PROGRAM, PHASE_S, bench.native()).per_second
    for library in bench.libraries:
        with tempfile.TemporaryDirectory() as folder:
            run, changed_s = _run(bench, library, Path(folder))
        for number, (percent, from_s) in enumerate(zip(LIMITS, changed_s, strict=True)):
            share = 100 * run.per_second_between(from_s + SOON_S, from_s + PHASE_S) / native
            before = "idle" if number == 0 else str(LIMITS[number - 1])
            settled_s = _settled_after_s(run, from_s, native, percent)
            note = f"all windows of {1000 * WINDOW_S:g} ms within {CLOSE:g} points after {settled_s:.2f} s"
            musts = [Must(f"share after {SOON_S:g} s", share, percent - 1, percent + 1)]
            yield Row(f"from {before}", str(percent), library, (share,), musts, None, (), native, note)
