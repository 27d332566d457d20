"""Starts the programs that are measured, with the library and without, and reads what they say of themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1]
ROOT = BENCH.parents[1]
PROGRAMS = BENCH / "programs"
sys.path.insert(0, str(BENCH.parent))
from support import LIBRARY, python_with_torch  # noqa: E402

MODELS = ("train", "train16", "generate", "infer", "decode")
START_S = 4.0  # time for several programs to make their contexts, before they begin together
START_EACH_S = 0.1  # more, for each of many
SETTLE_S = 0.5  # each program works so long before it measures itself
LATE_S = 60.0  # a program may take so much longer than it was to
SECOND_S = 1.0

Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Run:
    """The work that one program completed, per second, and how evenly."""

    per_second: float
    longest_stall_ms: float
    stalled_at_s: float = 0.0
    began_at_s: float = 0.0
    samples: tuple[float, ...] = ()
    sample_s: float = 0.05
    stalls_ms: tuple[float, ...] = ()  # the longest that ended in each sample, of programs that tell
    median_ms: float = 0.0  # from a launch to its end, of a program that pauses between them
    p99_ms: float = 0.0

    def most_in_a_second(self, from_s: float = 0.0, to_s: float | None = None) -> float | None:
        """The work of the second that has most of it, of all seconds between two times."""
        return max(self.windows(SECOND_S, from_s, to_s), default=None)

    def longest_stall_ms_between(self, from_s: float, to_s: float) -> float | None:
        """The windows that ended between two times."""
        return max(self.stalls_ms[round(from_s / self.sample_s) : round(to_s / self.sample_s)], default=None)

    def windows(self, length_s: float, from_s: float = 0.0, to_s: float | None = None) -> list[float]:
        """The work per second of windows of that length, one from each sample on between two times."""
        size = round(length_s / self.sample_s)
        part = self.samples[round(from_s / self.sample_s) : None if to_s is None else round(to_s / self.sample_s)]
        return [sum(part[i : i + size]) / length_s for i in range(len(part) - size + 1)]

    def per_second_between(self, from_s: float, to_s: float | None = None) -> float:
        """Work per second between two times of the measurement."""
        part = self.samples[round(from_s / self.sample_s) : None if to_s is None else round(to_s / self.sample_s)]
        return sum(part) / (len(part) * self.sample_s) if part else 0.0


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, as nvidia-smi names it."""

    index: int
    uuid: str
    name: str
    driver: str


def gpus() -> list[Gpu]:
    """All GPUs of this machine."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [[field.strip() for field in line.split(",")] for line in lines]
    return [Gpu(int(index), uuid, name, driver) for index, uuid, name, driver in fields]


@dataclass(frozen=True)
class Launch:
    """How a program is started: what comes before its command line, and variables."""

    prefix: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def vgpurun(gpus: tuple[Gpu, ...], percent: int, library: Path, *more: str) -> Launch:
    """Under `vgpurun local` with a compute limit; 100 is none."""
    devices = "device=" + ",".join(gpu.uuid for gpu in gpus)
    options = ("--gpus", devices, "--sm", str(percent), *more)
    command = (sys.executable, "-m", "vgpurun", "local", *options, "--")
    return Launch(command, {"VGPURUN_LIBRARY": str(library)})


def natively(gpus: tuple[Gpu, ...]) -> Launch:
    """Without the library."""
    return Launch((), {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)})


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Programs:
    """The programs in ../programs, compiled; and those of them that run, which end with us."""

    def __init__(self, folder: Path) -> None:
        make = ["make", "-s", "-C", str(ROOT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
        self._includes = subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()
        self._folder = folder
        self._kernels = self.compile("kernels")
        self._running: set[Process] = set()
        self.stopped = False

    @cached_property
    def _torch(self) -> str | None:
        return python_with_torch()  # takes seconds

    def torch(self) -> str:
        """Return a Python that has PyTorch. Raises RuntimeError where there is none."""
        if self._torch is None:
            raise RuntimeError("PyTorch is not installed; GPU_PYTHON may name a Python that has it")
        return self._torch

    def compile(self, name: str) -> str:
        """Compile a program and return its path."""
        program = self._folder / name
        command = ["gcc", "-std=gnu11", "-O2", *self._includes, str(PROGRAMS / f"{name}.c"), "-ldl", "-lpthread"]
        subprocess.run([*command, "-o", str(program)], check=True)
        return str(program)

    def command(self, program: str, seconds: float, at_s: float | None, settle_s: float) -> list[str]:
        """Return a program's own command line. Raises RuntimeError where it cannot run."""
        if program not in MODELS:
            return [self._kernels, program, str(seconds), str(at_s or 0), str(settle_s)]
        return [self.torch(), str(PROGRAMS / "loop.py"), program, str(seconds)]

    def start(self, command: list[str], launch: Launch) -> Process:
        """Start a command. Raises RuntimeError when all is to end."""
        if self.stopped:
            raise RuntimeError("stopped")
        process = subprocess.Popen(
            [*launch.prefix, *command],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **launch.environment},
            start_new_session=True,
        )
        self._running.add(process)
        return process

    def end(self, process: Process) -> None:
        """Kill a program, and what it has started."""
        if process in self._running:
            _kill(process)
            process.communicate()
            self._running.discard(process)

    def stop(self) -> None:
        """Kill all programs; none starts any more."""
        self.stopped = True
        for process in tuple(self._running):
            _kill(process)

    def output(self, process: Process, timeout_s: float) -> list[dict[str, Any]]:
        """Wait for a program, and return the lines of JSON that it printed. Raises RuntimeError."""
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end(process)
            raise RuntimeError(f"has not ended in {timeout_s:.0f} s: {process.args}") from None
        self._running.discard(process)
        if process.returncode != 0 or not output:
            raise RuntimeError(f"ended with {process.returncode}: {process.args}")
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@dataclass(frozen=True)
class Bench:
    """A GPU, or several, to measure on, and the libraries that are compared there, by name."""

    programs: Programs
    gpus: tuple[Gpu, ...]
    libraries: Mapping[str, Path]

    def native(self) -> Launch:
        """Without the library."""
        return natively(self.gpus)

    def limited(self, percent: int, library: str, *more: str) -> Launch:
        """Under a limit, and what other options say."""
        return vgpurun(self.gpus, percent, self.libraries[library], *more)

    def start(
        self,
        program: str,
        seconds: float,
        launch: Launch,
        at_s: float | None = None,
        settle_s: float = SETTLE_S,
        copies: int = 1,
    ) -> Process:
        """Start a program that measures itself for so long; several copies are of one container."""
        command = self.programs.command(program, seconds, at_s, settle_s)
        if copies > 1:
            command = ["sh", "-c", '"$@" & ' * copies + "wait", "sh", *command]
        return self.programs.start(command, launch)

    def wait_until_it_begins(self, process: Process) -> None:
        """Wait for a model's first line, which it prints when it begins to measure itself. Raises RuntimeError."""
        if not process.stdout.readline():
            raise RuntimeError(f"has not begun: {process.args}")

    def finish(self, process: Process, seconds: float) -> list[Run]:
        """Wait for a program that measures itself for so long, and read what it says; of each copy."""
        printed = self.programs.output(process, seconds + START_S + LATE_S)
        measured = [each for each in printed if "per_second" in each]
        series = ("samples", "stalls_ms")
        return [Run(**{**each, **{name: tuple(each.get(name, ())) for name in series}}) for each in measured]

    def run(self, program: str, seconds: float, launch: Launch, settle_s: float = SETTLE_S) -> Run:
        """Run a program alone on the GPU."""
        return self.finish(self.start(program, seconds, launch, settle_s=settle_s), seconds + settle_s)[-1]

    def together(self, programs: Sequence[str], launches: Sequence[Launch], seconds: float) -> list[Run]:
        """Run several at the same time, measured over the same seconds."""
        at_s = time.monotonic() + START_S + START_EACH_S * len(launches)
        started = [
            self.start(program, seconds, launch, at_s) for program, launch in zip(programs, launches, strict=True)
        ]
        try:
            return [self.finish(process, seconds)[-1] for process in started]
        finally:
            for process in started:
                self.programs.end(process)


def libraries(names: list[str]) -> dict[str, Path]:
    """NAME=PATH for each; the checkout's own without any. Raises ValueError."""
    given = names or [f"main={LIBRARY}"]
    found = {name: Path(path).resolve() for name, _, path in (each.partition("=") for each in given)}
    for name, path in found.items():
        if not path.is_file():
            raise ValueError(f"{name}={path}: no such file; `make lib` makes this checkout's own")
    return found
