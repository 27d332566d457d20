"""A tenant's losses when its neighbour dies, stops, or holds a kernel that never ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cases import Case, Options
from report import Must, Row
from runs import SETTLE_S, START_S, Bench, Process

EVENT_S = 2.0  # after the measurement began
SETTLED_S = 1.0  # after the event
LEAST_S = 4.0  # to be measured then
FOR_EVER_S = 3600.0


def _child(process: Process) -> int:
    """The program that vgpurun runs."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def _kill(process: Process) -> None:
    os.kill(_child(process), signal.SIGKILL)


def _stop(process: Process) -> None:
    os.kill(_child(process), signal.SIGSTOP)


def _nothing(process: Process) -> None:
    pass


@dataclass(frozen=True)
class Event:
    """The neighbour's program, when it begins against the measured one, what happens to it, and what is left then."""

    program: str
    delay_s: float
    happen: Callable[[Process], None]
    least: float


EVENTS = {
    "killed": Event("50us", 0.0, _kill, 49),
    "stopped": Event("50us", 0.0, _stop, 49),
    "endless kernel": Event("endless", SETTLE_S + EVENT_S, _nothing, 48),
    "endless kernel before": Event("endless", -SETTLE_S, _nothing, 48),
}


def cases(options: Options) -> Iterator[Case]:
    """Two tenants at 50: the share of the one after the other's end, and its longest stall."""
    seconds = max(options.seconds, EVENT_S + SETTLED_S + LEAST_S)
    for name, event in EVENTS.items():
        if not options.programs or name in options.programs:
            yield Case("faults", name, partial(_measure, name=name, event=event, seconds=seconds))


def _measure(bench: Bench, name: str, event: Event, seconds: float) -> Iterator[Row]:
    alone = bench.run("50us", seconds, bench.native()).per_second
    for library in bench.libraries:
        launch = bench.limited(50, library)
        at_s = time.monotonic() + START_S
        neighbour = bench.start(event.program, FOR_EVER_S, launch, at_s + event.delay_s)
        try:
            measured = bench.start("50us", seconds, launch, at_s)
            time.sleep(max(0.0, at_s + SETTLE_S + EVENT_S - time.monotonic()))
            event.happen(neighbour)
            run = bench.finish(measured, seconds)[-1]
        finally:
            bench.programs.end(neighbour)
        share = 100 * run.per_second_between(EVENT_S + SETTLED_S) / alone
        stall = run.longest_stall_ms
        note = f"stalled {run.stalled_at_s - EVENT_S:+.2f} s from the event"
        musts = [Must("share", share, event.least, 51), Must("stall", stall, 0, 100)]
        yield Row(name, "50 / 50", library, (share,), musts, None, (stall,), alone, note)
