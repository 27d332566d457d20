"""The built library on the simulated driver: programs are started under limits as `vgpurun` would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import CHECKOUT, LIBRARY

SIMULATED_DRIVER = LIBRARY.parent / "sim"
PROGRAMS = Path(__file__).parent / "programs"
TESTS = CHECKOUT / "tests"
MACHINE = """
devices:
  - name: Simulated A
    uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000
    memory_mib: 8192
  - name: Simulated B
    uuid: GPU-bbbbbbbb-0000-0000-0000-000000000000
    memory_mib: 8192
"""


@dataclass(frozen=True)
class Sandbox:
    """One simulated machine: its environment, where limits are set by variables."""

    folder: Path
    environment: Mapping[str, str]

    def variables(self, **limits: str) -> dict[str, str]:
        """The environment of a limited program."""
        return {**self.environment, "LD_PRELOAD": str(LIBRARY), **limits}

    def run(
        self, command: Sequence[str | Path], timeout_s: float = 60, **limits: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program under the library."""
        return subprocess.run(
            list(command), env=self.variables(**limits), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def python(self, code: str, timeout_s: float = 60, **limits: str) -> str:
        """Run Python code under the library and return what it printed; it must succeed."""
        result = self.run([sys.executable, "-c", code], timeout_s, **limits)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def start_python(self, code: str, **limits: str) -> subprocess.Popen[str]:
        """Start Python code under the library; its standard streams are pipes."""
        return subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            env=self.variables(**limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def sandbox(built_library: Path, tmp_path: Path) -> Sandbox:
    config = tmp_path / "sim.yaml"
    config.write_text(MACHINE)
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(SIMULATED_DRIVER),
        "VGPUSIM_CONFIG": str(config),
        "VGPUSIM_STATE": str(tmp_path / "sim.state"),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage"),
        "PYTHONPATH": str(TESTS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Sandbox(tmp_path, environment)


@pytest.fixture
def compile_c(tmp_path: Path) -> Callable[..., Path]:
    """Compile one of our programs with the CUDA headers on its path; further arguments go to gcc."""
    make = ["make", "-s", "-C", str(CHECKOUT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
    includes = subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()

    def build(source: str, *arguments: str, output: str = "program") -> Path:
        result = tmp_path / output
        subprocess.run(["gcc", *includes, str(PROGRAMS / source), *arguments, "-o", str(result)], check=True)
        return result

    return build
