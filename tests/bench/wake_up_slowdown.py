"""How much slower a host is after a sleep, which a program that is taken off its GPU has more of.

Natively, for steps of inference that Python's speed decides. Prints a Markdown table: what the steps after a sleep of
so many milliseconds take, in percent of a step without one. It needs PyTorch and a GPU.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "programs"))
import loop

SLEEPS_MS = (0.2, 0.5, 1, 2, 5, 10, 20, 50)
STEPS = 12
ROUNDS = 25


def steps_s(step: Callable[[], object], sleep_s: float) -> list[float]:
    """Return the time of each step after a sleep: the median of the rounds."""
    rounds = []
    for _ in range(ROUNDS):
        time.sleep(sleep_s)
        ends = [time.perf_counter()]
        for _ in range(STEPS):
            step()
            ends.append(time.perf_counter())
        rounds.append([after - before for before, after in pairwise(ends)])
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


def main() -> None:
    step = loop.STEPS["decode"]()
    loop.measure(step, 1.0)
    usual_s = statistics.median(steps_s(step, 0))
    print(f"A step takes {1000 * usual_s:.2f} ms.\n")
    print("| after, ms | " + " | ".join(f"step {number}" for number in range(1, STEPS + 1)) + " |")
    print("|---" * (STEPS + 1) + "|")
    for sleep_ms in SLEEPS_MS:
        cells = [f"{100 * each_s / usual_s:.0f}" for each_s in steps_s(step, sleep_ms / 1000)]
        print(f"| {sleep_ms:g} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
