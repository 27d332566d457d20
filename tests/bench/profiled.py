"""How much slower a profile makes PyTorch programs whose GPU waits for their launches.

    python tests/bench/profiled.py [SECONDS] [PROGRAM]...

Each program runs in one process with `--profile`, whose recording is switched on and off in turns: from one process to
the next such a program's speed differs by more than a profile costs. Prints a Markdown table: the time of its steps in
percent of that without recording, the median of the turns and their quartiles. It needs PyTorch, a GPU and `nm`.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BENCH = Path(__file__).parent
sys.path[:0] = [str(BENCH / "programs"), str(BENCH.parent), str(BENCH.parents[1])]
from support import LIBRARY, python_with_torch  # noqa: E402
from vgpurun.profiles.reader import read_profiles  # noqa: E402

SECONDS = 30.0
TURN_S = 0.05
PROGRAMS = ("decode", "small", "train16")
OFF, ON = 1, 2  # profile_state in lib/src/stream/profile.h


def address_in_library(symbol: str) -> int:
    """Return the symbol's offset from the library's beginning."""
    listed = subprocess.run(["nm", LIBRARY], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in listed.splitlines() if line.split()[-1] == symbol)


def library_begins_at() -> int:
    """Return the address at which this process has the library."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return min(int(line.partition("-")[0], 16) for line in maps if line.endswith(str(LIBRARY)))


def turns_us(
    step: Callable[[], object], synchronize: Callable[[], object], switch: ctypes.c_int, seconds: float
) -> tuple[list[float], int]:
    """Return the time of a step in each turn, which ends when the GPU is done, and how many steps a turn has."""
    steps = 0
    began = time.perf_counter()
    while steps == 0 or time.perf_counter() - began < TURN_S:
        step()
        steps += 1
    synchronize()
    turns: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        switch.value = OFF if switch.value == ON else ON
        began = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize()
        turns.append((time.perf_counter() - began) * 1e6 / steps)
    return turns, steps


def calls_so_far(folder: Path) -> int:
    """Return how many calls have been recorded."""
    return sum(total.calls for profile in read_profiles(folder) for total in profile.totals)


def switched(program: str, seconds: float, address: int) -> None:
    """In a process with the library: prints its turns, the first of them without recording, and the calls of a step."""
    import loop
    import torch

    step = loop.STEPS[program]()
    loop.measure(step, 2.0)
    torch.cuda.synchronize()
    switch = ctypes.c_int.from_address(library_begins_at() + address)
    assert switch.value == ON, switch.value
    before = calls_so_far(Path(os.environ["PFLOG"]))
    turns, steps = turns_us(step, torch.cuda.synchronize, switch, seconds)
    calls = (calls_so_far(Path(os.environ["PFLOG"])) - before) / (steps * (1 + len(turns) // 2))
    switch.value = ON
    print(json.dumps({"turns_us": turns, "calls": calls}))


def row(program: str, seconds: float) -> str:
    """Measure one program."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "PFLOG": folder}
        address = str(address_in_library("profile_state"))
        command = [python_with_torch() or sys.executable, __file__, "--in-process", program, str(seconds), address]
        printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    measured = json.loads(printed.splitlines()[-1])
    turns_us = measured["turns_us"]
    # Each turn with recording is held against those before and after it.
    percent = [200 * turns_us[i] / (turns_us[i - 1] + turns_us[i + 1]) for i in range(1, len(turns_us) - 1, 2)]
    low, median, high = statistics.quantiles(percent, n=4)
    without_us = statistics.median(turns_us[::2])
    more_ns = (median / 100 - 1) * without_us * 1000 / measured["calls"]
    cells = (
        f"{without_us:.1f}",
        f"{measured['calls']:.0f}",
        f"{median:.2f} ({low:.2f} to {high:.2f})",
        f"{more_ns:.0f}",
        str(len(percent)),
    )
    return f"| {program} | {' | '.join(cells)} |"


def main() -> None:
    if sys.argv[1:2] == ["--in-process"]:
        switched(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print("| program | a step, µs | its calls | with a profile, % (quartiles) | more for a call, ns | turns |")
    print("|---|---|---|---|---|---|")
    for program in sys.argv[2:] or PROGRAMS:
        print(row(program, seconds), flush=True)


if __name__ == "__main__":
    main()
