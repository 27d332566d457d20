"""How long vgpurun's help and `ps` take, what it adds to the start of a container, and what admission has a part in.

    python tests/bench/startup.py IMAGE [COUNT]

IMAGE is one that the engine has, with a `true` and a `sleep`. vgpurun runs it on the simulated GPU where there is no
other, so this needs a Docker Engine and docker's own command line, but no GPU. All commands take turns, COUNT times.

Printed are medians: of the time on the clock, which a busy machine makes longer, and of the processor's time, which it
hardly does. A bare `python -c pass` runs in between, for a measure of the machine and of its Python. The first line
says which vgpurun it is: a checkout's, or one that was installed from a wheel.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import vgpurun

RUNS = 20
OTHERS = 8  # containers that hold shares of the GPU while another is admitted
HELP_MS, PS_MS, ADDED_MS = 100, 300, 350  # the aims on an idle machine

VGPURUN = [str(Path(sys.executable).with_name("vgpurun"))]  # the users' command: `python -m` takes longer


def durations_ms(command: Sequence[str]) -> tuple[float, float]:
    """The time on the clock and of the processor."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    ended = time.perf_counter()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return (ended - began) * 1000, (used.ru_utime + used.ru_stime) * 1000


def measure(commands: dict[str, list[str]], count: int) -> dict[str, float]:
    """Print the medians of each command, and return those of the clock."""
    for command in commands.values():
        durations_ms(command)  # files are read from the disk, and compiled, once
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(count):
        for name, command in commands.items():
            found[name].append(durations_ms(command))
    medians = {name: statistics.median(clock for clock, _ in each) for name, each in found.items()}
    for name, each in found.items():
        clock = sorted(ms for ms, _ in each)
        cpu = statistics.median(ms for _, ms in each)
        print(f"{name:28} {medians[name]:6.0f} ms  ({clock[0]:.0f} to {clock[-1]:.0f}), {cpu:.0f} ms of processor time")
    return medians


def hold_gpu(image: str, count: int, undo: Callable[..., object]) -> None:
    """Start containers that have a share of the GPU each and do nothing."""
    for _ in range(count):
        command = [*VGPURUN, "run", "-d", "--rm", "--mem", "256m", image, "sleep", "600"]
        container = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        undo(subprocess.run, ["docker", "rm", "-f", container], stdout=subprocess.DEVNULL)


def main() -> None:
    image = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start would compile vgpurun anew
    if not os.path.exists("/dev/nvidiactl"):
        os.environ.setdefault("VGPURUN_DRIVER", "sim")
    print(f"{VGPURUN[0]}, of {Path(vgpurun.__file__).parent}")
    run = [*VGPURUN, "run", "--rm", "--mem", "256m", image, "true"]
    medians = measure(
        {
            "python -c pass": [sys.executable, "-c", "pass"],
            "vgpurun --help": [*VGPURUN, "--help"],
            "vgpurun run --help": [*VGPURUN, "run", "--help"],
            "vgpurun ps": [*VGPURUN, "ps"],
            "docker run": ["docker", "run", "--rm", image, "true"],
            "vgpurun run": run,
        },
        count,
    )
    with ExitStack() as undo:
        hold_gpu(image, OTHERS, undo.callback)
        beside = f"vgpurun run, {OTHERS} others"
        medians |= measure({f"vgpurun ps, {OTHERS} containers": [*VGPURUN, "ps"], beside: run}, count)
    added = medians["vgpurun run"] - medians["docker run"]
    ratio = medians["vgpurun run"] / medians["docker run"]
    print(f"vgpurun adds {added:.0f} ms to docker run ({ratio:.2f} times)")
    print(f"the aim: {ADDED_MS} ms, help {HELP_MS}, ps {PS_MS}")
    print(f"each other container adds {(medians[beside] - medians['vgpurun run']) / OTHERS:.1f} ms to its admission")


if __name__ == "__main__":
    main()
