"""The simulated driver by itself: programs run on a machine of their own, with its configuration and its state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support import CHECKOUT, LIBRARY

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
PRELUDE = """
import ctypes, os, sys, threading, time
from ctypes import byref
from cuda_driver import *
MIB = 1 << 20
driver = Driver()
"""


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

    def python(self, code: str, *, start: bool = True, **variables: str) -> str:
        """Run code that must succeed, and return what it printed. `start`: with cuInit and a context on device 0."""
        result = self.run(sys.executable, "-c", self._program(code, start), **variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def start_python(self, code: str, *, start: bool = True, **variables: str) -> subprocess.Popen[str]:
        """Start code whose standard streams are pipes; it ends with the test."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", self._program(code, start)],
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
    def _program(code: str, start: bool) -> str:
        return PRELUDE + ("driver.start()\n" if start else "") + code


@pytest.fixture(scope="session")
def simulated_driver() -> Path:
    """lib/build/sim, built where it is not there."""
    if not (SIMULATED_DRIVER / "libcuda.so.1").exists():
        subprocess.run(["make", "-s", "-C", CHECKOUT / "lib", f"PYTHON={sys.executable}", "sim"], check=True)
    return SIMULATED_DRIVER


@pytest.fixture(scope="session")
def cuda_includes() -> list[str]:
    """The -I flags for cuda.h and nvml.h."""
    make = ["make", "-s", "-C", str(CHECKOUT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
    return subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def machine(simulated_driver: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with two devices."""
    result = Machine(
        tmp_path,
        {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(simulated_driver),
            "VGPUSIM_CONFIG": str(tmp_path / "sim.yaml"),
            "VGPUSIM_STATE": str(tmp_path / "sim.state"),
            "PYTHONPATH": str(CHECKOUT / "tests"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    result.configure(TWO_DEVICES)
    yield result
    for process in result.started:
        process.kill()
        process.communicate()
