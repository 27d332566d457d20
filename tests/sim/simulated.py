"""A simulated machine, and how programs are started on it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support import BARE_PYTHON, LIBRARY
from support.programs import OWN, Program, text_of

SIMULATED_DRIVER = LIBRARY.parent / "sim"
UUID_A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
UUID_B = "GPU-aabbbbbb-0000-0000-0000-000000000000"
TWO_DEVICES = f"""
devices:
  - name: Simulated A
    uuid: {UUID_A}
    memory_mib: 8192
  - name: Simulated B
    uuid: {UUID_B}
    memory_mib: 4096
    context_overhead_mib: 100
"""
MIB = 1 << 20
driver = OWN


# A busy machine may delay the host at any point, which makes a time longer but never shorter: the best of some counts.
# Tests that look while a kernel runs use one of 30 s, which nobody waits for.
def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds between events before and behind what `work` launches."""
    start, end = driver.event(), driver.event()
    driver.event_record(start)
    work()
    driver.event_record(end)
    driver.event_synchronize(end)
    return float(driver.event_elapsed_ms(start, end))


def on_host(work: Callable[[], object]) -> float:
    """Return the milliseconds for which the host waits for what `work` launches."""
    began = time.monotonic()
    work()
    driver.synchronize()
    return (time.monotonic() - began) * 1000


def near(measure: Callable[[], float], expected: float, tolerance: float = 0.1) -> None:
    """Measure until that is near what is expected, but never less."""
    seen: list[float] = []
    while len(seen) < 100:
        seen.append(measure())
        assert seen[-1] >= expected - 0.001, (seen, expected)
        if seen[-1] <= expected + tolerance:
            return
    raise AssertionError((seen, expected))


def late_by(milliseconds: float) -> float:
    """Return by how many milliseconds this machine wakes late from a sleep, at best: so late is a wait for the GPU."""
    return min(on_host(partial(time.sleep, milliseconds / 1000)) for _ in range(20)) - milliseconds


@dataclass
class Machine:
    """A simulated machine, as all processes with this environment see it."""

    folder: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env={**self.environment, **variables}, capture_output=True, text=True, timeout=60, check=False
        )

    def python(self, program: Program, *, start: bool = True, **variables: str) -> str:
        """Run a program that must succeed; return what it printed. `start`: with cuInit and a context on device 0."""
        result = self.run(*BARE_PYTHON, "-c", self._text(program, start), **variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def start_python(self, program: Program, *, start: bool = True, **variables: str) -> subprocess.Popen[str]:
        """Start a program whose standard streams are pipes; it ends with the test."""
        process = subprocess.Popen(
            [*BARE_PYTHON, "-u", "-c", self._text(program, start)],
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def configure(self, text: str) -> None:
        Path(self.environment["VGPUSIM_CONFIG"]).write_text(text)

    @staticmethod
    def _text(program: Program, start: bool) -> str:
        return text_of(program, "from cuda_driver import Driver", "driver = Driver()", *["driver.start()"] * start)


def queue(kernel: int, count: int) -> list[int]:
    """Launch, with an event behind each kernel."""
    events = []
    for _ in range(count):
        driver.launch(kernel)
        events.append(driver.event())
        driver.event_record(events[-1])
    return events


def run_a_kernel() -> None:
    driver.launch(driver.kernel("spin_1ms"))
    driver.synchronize()
    if driver.result("cuInit", 0) == "CUDA_SUCCESS":
        print("ran")
