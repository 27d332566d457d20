"""Starts the programs that are measured, with the library and without, and reads what they say of themselves."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1]
ROOT = BENCH.parents[1]
PROGRAMS = BENCH / "programs"
sys.path.insert(0, str(BENCH.parent))
from support import python_with_torch  # noqa: E402

KERNELS = ("300ms", "5ms", "1ms", "50us", "4us", "graph", "sync", "streams", "bursts")
MODELS = ("train", "infer")
START_S = 4.0  # time for several programs to make their contexts, before they begin together
WINDOW_S = 0.25


@dataclass(frozen=True)
class Run:
    """What one program completed, per second, and how evenly: windows are of a quarter of a second."""

    per_second: float
    longest_stall_ms: float
    stalled_at_s: float = 0.0
    began_at_s: float = 0.0
    samples: tuple[float, ...] = ()
    sample_s: float = 0.05

    @property
    def window_deviation(self) -> float | None:
        """Standard deviation of the windows' work, as a part of their mean."""
        size = round(WINDOW_S / self.sample_s)
        windows = [sum(self.samples[i : i + size]) for i in range(0, len(self.samples) - size + 1, size)]
        mean = statistics.fmean(windows) if windows else 0
        return statistics.pstdev(windows) / mean if mean else None

    def per_second_after(self, seconds: float) -> float:
        """Work per second from that time of the measurement on."""
        later = self.samples[int(seconds / self.sample_s) :]
        return sum(later) / (len(later) * self.sample_s) if later else 0.0


class Bench:
    """Compiles what is needed once; each program is alone in its process and its container."""

    def __init__(self, folder: Path) -> None:
        make = ["make", "-s", "-C", str(ROOT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
        includes = subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()
        self._kernels = folder / "kernels"
        source = PROGRAMS / "kernels.c"
        command = ["gcc", "-std=gnu11", "-O2", *includes, str(source), "-ldl", "-lpthread", "-o", str(self._kernels)]
        subprocess.run(command, check=True)
        self.python = python_with_torch()

    def command(self, program: str, seconds: float, at_s: float | None = None) -> list[str]:
        """The program's own command line."""
        if program in MODELS:
            if self.python is None:
                sys.exit("PyTorch is not installed; GPU_PYTHON may name a Python that has it")
            command = [self.python, str(PROGRAMS / "loop.py"), program, str(seconds)]
        else:
            command = [str(self._kernels), program, str(seconds)]
        return command if at_s is None else [*command, str(at_s)]

    def start(
        self, program: str, seconds: float, options: list[str] | None = None, at_s: float | None = None
    ) -> subprocess.Popen[str]:
        """Start it under `vgpurun local` with these options; natively without any."""
        limited = (
            [] if options is None else [sys.executable, "-m", "vgpurun", "local", "--gpus", "device=0", *options, "--"]
        )
        command = [*limited, *self.command(program, seconds, at_s)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def run(self, program: str, seconds: float, options: list[str] | None = None) -> Run:
        """Run it alone on the GPU."""
        return finish(self.start(program, seconds, options))

    def together(self, programs: list[tuple[str, list[str] | None]], seconds: float) -> list[Run]:
        """Run several at the same time, measured over the same seconds."""
        at_s = time.monotonic() + START_S
        started = [self.start(program, seconds, options, at_s) for program, options in programs]
        return [finish(process) for process in started]


def finish(process: subprocess.Popen[str]) -> Run:
    """Wait for a program that measures itself, and read what it printed last."""
    output, _ = process.communicate()
    if process.returncode != 0 or not output:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    measured["samples"] = tuple(measured.get("samples", ()))
    return Run(**measured)


def limit(percent: int) -> list[str]:
    """The options of vgpurun for a compute limit."""
    return ["--sm", str(percent)]
