"""How long two trainings take in turns (--swap), as a part of how long they take one after the other.

    python tests/bench/swap.py [--steps 400] [--ms 50] [--held 90] [--times 3]  # on a simulated GPU, as root
    python tests/bench/swap.py --python PYTHON [--gib 126] [--steps 2000] [--gpu 0]  # on a real one, where a guard runs

Each holds 90 % of the GPU's memory, and looks at bytes of it in every step. The simulated GPU has 8 GiB, and copies 12
MiB a millisecond on a process's way off it and back, as a card on PCIe 5 does. The real one needs nobody else on it, a
Python with PyTorch, and as much host memory. The goal: at least 70 %.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.suspension import PATTERNS, Guard, Host  # from the tests' folder

MEMORY_MIB, COPY_MIB_PER_MS = 8192, 12
TRAINING = PATTERNS.with_name("training.py")
TURNS = ("--swap", "--mem", "90%", "--gpus")
ON_GPU = Path(__file__).parent / "programs" / "torch_training.py"

Start = Callable[[], "subprocess.Popen[str]"]


def took_s(start: Start, count: int) -> float:
    """Let so many run at once; none finds a wrong byte."""
    began_s = time.monotonic()
    running = [start() for _ in range(count)]
    for each in running:
        out, err = each.communicate()
        if each.returncode or not out.endswith("right\n"):
            raise SystemExit(f"a training failed: {err or out}")
    return time.monotonic() - began_s


def measure(start: Start, times: int, where: str) -> None:
    print("where\tone after the other, s\tin turns, s\tpart", flush=True)
    parts = []
    for _ in range(times):
        alone_s = 2 * took_s(start, 1)
        turns_s = took_s(start, 2)
        parts.append(alone_s / turns_s)
        print(f"{where}\t{alone_s:.1f}\t{turns_s:.1f}\t{parts[-1]:.0%}", flush=True)
    print(f"{where}\t\tmedian\t{statistics.median(parts):.0%}")


@contextmanager
def simulated(steps: int, milliseconds: int, held_percent: int) -> Iterator[Start]:
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), MEMORY_MIB, count=1)
        config = Path(folder, "sim.yaml")
        config.write_text(
            config.read_text().replace("checkpoint_mib_per_ms: 100", f"checkpoint_mib_per_ms: {COPY_MIB_PER_MS}")
        )
        mib = MEMORY_MIB * held_percent // 100 - 150
        command = [sys.executable, "-u", str(TRAINING), str(mib), str(steps), str(milliseconds)]
        guard = Guard(host)
        try:
            yield lambda: host.start("local", "--driver", "sim", *TURNS, "device=0", "--", *command)
        finally:
            guard.end()


def on_this_host(gpu: int, command: Sequence[str]) -> Start:
    whole = [sys.executable, "-m", "vgpurun", "local", *TURNS, f"device={gpu}", "--", *command]
    return lambda: subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ms", type=int, default=50)
    parser.add_argument("--held", type=int, default=90, help="percent of the simulated GPU's memory that each holds")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--python", help="measure this host's GPU, with this Python; a guard has to run")
    parser.add_argument("--gib", type=int, default=126)
    parser.add_argument("--gpu", type=int, default=0, help="its index in nvidia-smi")
    options = parser.parse_args()
    if options.python:
        start = on_this_host(options.gpu, [options.python, str(ON_GPU), str(options.gib), str(options.steps)])
        measure(start, options.times, "this host's GPU")
        return
    with simulated(options.steps, options.ms, options.held) as start:
        measure(start, options.times, f"simulated, {MEMORY_MIB >> 10} GiB at {COPY_MIB_PER_MS} MiB/ms")


if __name__ == "__main__":
    main()
