"""What a tenant feels when its neighbour dies, stops, or holds a kernel that never ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from report import Row
from runs import START_S, Bench, finish, limit

EVENT_S = 2.0  # after the measurement began
SETTLED_S = 1.0  # after the event


def _child(process: subprocess.Popen[str]) -> int:
    """The program that vgpurun runs."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def _kill(process: subprocess.Popen[str]) -> None:
    os.kill(_child(process), signal.SIGKILL)


def _stop(process: subprocess.Popen[str]) -> None:
    os.kill(_child(process), signal.SIGSTOP)


def _nothing(process: subprocess.Popen[str]) -> None:
    pass


# The neighbour's program, when it begins (after the measured one), and what happens to it.
EVENTS: dict[str, tuple[str, float, Callable[[subprocess.Popen[str]], None]]] = {
    "killed": ("50us", 0.0, _kill),
    "stopped": ("50us", 0.0, _stop),
    "endless kernel": ("endless", 1.0 + EVENT_S, _nothing),
}


def measure(bench: Bench, seconds: float, events: tuple[str, ...], _: tuple[str, ...]) -> Iterator[Row]:
    """Two tenants at 50: the share of the one after the other's end, and its longest stall."""
    alone = bench.run("50us", seconds)
    for event in events or tuple(EVENTS):
        program, delay_s, happen = EVENTS[event]
        at_s = time.monotonic() + START_S
        neighbour = bench.start(program, 3600, limit(50), at_s + delay_s)
        measured = bench.start("50us", seconds, limit(50), at_s)
        time.sleep(max(0.0, at_s + 1 + EVENT_S - time.monotonic()))
        happen(neighbour)
        run = finish(measured)
        if neighbour.poll() is None:
            os.kill(_child(neighbour), signal.SIGKILL)
        neighbour.communicate()
        share = 100 * run.per_second_after(EVENT_S + SETTLED_S) / alone.per_second
        stall = f"stalled {run.stalled_at_s - EVENT_S:+.2f} s from the event"
        yield Row("faults", event, "50 / 50", (share,), None, (run.longest_stall_ms,), alone.per_second, stall)
