"""The GPU time of a program whose host has a part in its speed: models, launches flat out, a wait after each, pauses.

Its limit is one of GPU time: it is due what it uses by itself, up to the limit. What it uses is the part of the time
in which the GPU computes, by its own counter, as nvidia-smi shows it.

A model's speed differs by up to a third from one process to the next, also natively, and some percent within seconds.
So each limit is compared with the time without one before and after it, in the same process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from adjustable import Adjustable
from report import Must, Row
from runs import MODELS, SETTLE_S, START_S, Bench, Run
from watched import Watched

STALL_MS = 45  # a period, and what it takes to switch
ROUNDS = {**dict.fromkeys(MODELS, 2), "4us": 2, "sync": 2, "third": 4}  # over all limits, each as many times shorter


def share_row(
    program: str, percent: int, library: str, share: float, most: float | None, stall_ms: float | None,
    native: float, note: str, due: float | None = None,
) -> Row:  # fmt: skip
    """A share with what must hold of it, of the second that has most work, and of stalls."""
    middle = percent if due is None else due
    musts = [Must("share", share, middle - 1, middle + 1)]
    if most is not None:
        musts.append(Must("most in a second", most, 0, percent + 1))
    if percent == 50 and stall_ms is not None:
        musts.append(Must("stall", stall_ms, 0, STALL_MS))
    stalls = () if stall_ms is None else (stall_ms,)
    return Row(program, str(percent), library, (share,), musts, most, stalls, native, note, due)


class _Phase:
    """A part of a program's run."""

    def __init__(self, run: Run, watched: Watched, from_s: float, seconds: float) -> None:
        at_s = (run.began_at_s + from_s, run.began_at_s + from_s + seconds)
        self.per_second = run.per_second_between(from_s, from_s + seconds)
        self.most_in_a_second = run.most_in_a_second(from_s, from_s + seconds)
        self.longest_stall_ms = run.longest_stall_ms_between(from_s, from_s + seconds)
        self.charged_percent = watched.charged_percent(*at_s)
        gpu_percent = watched.gpu_percent(*at_s)
        if gpu_percent is None:
            raise RuntimeError(f"the GPU's counter told nothing of {seconds:g} seconds")
        self.gpu_percent = gpu_percent
        self.clock_mhz = watched.clock_mhz(*at_s)


class _Limited(NamedTuple):
    """A part under a limit, between two without one."""

    before: _Phase
    phase: _Phase
    after: _Phase

    @property
    def unlimited(self) -> float:
        return (self.before.per_second + self.after.per_second) / 2

    @property
    def speed_percent(self) -> float:
        return 100 * self.phase.per_second / self.unlimited

    @property
    def uses_percent(self) -> float:
        """The part of the GPU's time that the program takes without a limit."""
        return (self.before.gpu_percent + self.after.gpu_percent) / 2

    @property
    def most_in_a_second_percent(self) -> float | None:
        """The GPU's time that the most work of a second takes."""
        most = self.phase.most_in_a_second
        return None if most is None else self.phase.gpu_percent * most / self.phase.per_second


def measure_in_phases(bench: Bench, program: str, seconds: float, limits: tuple[int, ...]) -> Iterator[Row]:
    """Measure each limit in as many rounds as the program has, so many seconds in all."""
    length_s = seconds / ROUNDS[program]
    native = bench.run(program, length_s, bench.native()).per_second
    phases: list[tuple[int | None, float]] = [(None, length_s / 2)]
    for percent in limits * ROUNDS[program]:
        phases += [(percent, length_s), (None, length_s / 2)]
    for library in bench.libraries:
        with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), bench.gpus[0].uuid) as watched:
            run, began_s = _run(bench, program, Adjustable(bench, library, Path(folder), None), phases)
        measured = [
            _Phase(run, watched, at_s + SETTLE_S, each_s) for at_s, (_, each_s) in zip(began_s, phases, strict=True)
        ]
        rounds = [_Limited(*measured[i - 1 : i + 2]) for i in range(1, len(measured), 2)]
        for number, percent in enumerate(limits):
            yield _row(program, percent, library, rounds[number :: len(limits)], native)


def _row(program: str, percent: int, library: str, rounds: Sequence[_Limited], native: float) -> Row:
    phases = [each.phase for each in rounds]
    uses_percent = statistics.fmean(each.uses_percent for each in rounds)
    share_percent = statistics.fmean(phase.gpu_percent for phase in phases)
    speed_percent = statistics.fmean(each.speed_percent for each in rounds)
    note = (
        f"uses {uses_percent:.1f} % by itself; has {speed_percent:.2f} % of its speed; "
        f"charged {_mean([phase.charged_percent for phase in phases]):.2f} %; "
        f"{statistics.fmean(each.unlimited for each in rounds):.6g}/s without a limit, in the same process; "
        f"{phases[-1].clock_mhz:.0f} MHz, without a limit {rounds[-1].before.clock_mhz:.0f}"
    )
    seconds = [most for each in rounds if (most := each.most_in_a_second_percent) is not None]
    stalls_ms = [phase.longest_stall_ms for phase in phases if phase.longest_stall_ms is not None]
    row = share_row(
        program,
        percent,
        library,
        share_percent,
        max(seconds, default=None),
        max(stalls_ms) if stalls_ms else None,
        native,
        note,
        min(percent, max(uses_percent, share_percent)),  # its host may be faster under a limit that it does not need
    )
    least = 99 if percent > uses_percent else 0
    return replace(row, musts=[*row.musts, Must("speed", speed_percent, least, float("inf"))])


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else 0.0


def _run(
    bench: Bench, program: str, limited: Adjustable, phases: list[tuple[int | None, float]]
) -> tuple[Run, list[float]]:
    """The run, and when in it each limit began."""
    length_s = sum(SETTLE_S + seconds for _, seconds in phases)
    if program in MODELS:
        process = bench.start(program, length_s, limited.launch)
        bench.wait_until_it_begins(process)
    else:
        at_s = time.monotonic() + START_S
        process = bench.start(program, length_s, limited.launch, at_s, settle_s=0)
        time.sleep(max(0.0, at_s - time.monotonic()))
    changed_s = []
    for percent, seconds in phases:
        limited.set(percent)
        changed_s.append(time.monotonic())
        time.sleep(SETTLE_S + seconds)
    run = bench.finish(process, length_s)[-1]
    return run, [max(0.0, each_s - run.began_at_s) for each_s in changed_s]
