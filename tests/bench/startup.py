"""What vgpurun adds to the start of a container, and how long its help takes: medians, and ratios within one run.

    python tests/bench/startup.py IMAGE [COUNT]

IMAGE is one that the engine has, with a `true`. vgpurun runs it on the simulated GPU where there is no other, so this
needs a Docker Engine and docker's own command line, but no GPU. Runs of the two take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

RUNS = 20
HELP_MS, ADDED_MS = 200, 150  # what is aimed at on an idle machine


def duration_ms(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    image = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS
    if not os.path.exists("/dev/nvidiactl"):
        os.environ.setdefault("VGPURUN_DRIVER", "sim")
    vgpurun = [sys.executable, "-m", "vgpurun"]
    commands = {
        "vgpurun --help": [*vgpurun, "--help"],
        "vgpurun run --help": [*vgpurun, "run", "--help"],
        "docker run": ["docker", "run", "--rm", image, "true"],
        "vgpurun run": [*vgpurun, "run", "--rm", "--mem", "1g", image, "true"],
    }
    durations: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        duration_ms(command)  # files are read from the disk once
    for _ in range(count):
        for name, command in commands.items():
            durations[name].append(duration_ms(command))
    medians = {name: statistics.median(each) for name, each in durations.items()}
    for name, median in medians.items():
        print(f"{name:20} {median:6.0f} ms  ({min(durations[name]):.0f} to {max(durations[name]):.0f})")
    added = medians["vgpurun run"] - medians["docker run"]
    ratio = medians["vgpurun run"] / medians["docker run"]
    print(f"vgpurun adds         {added:6.0f} ms  ({ratio:.2f} times docker run); the aim: {ADDED_MS}, help {HELP_MS}")


if __name__ == "__main__":
    main()
