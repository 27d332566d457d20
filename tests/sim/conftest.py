"""The simulated driver by itself: programs run on a machine of their own, with its configuration and its state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated import SIMULATED_DRIVER, TWO_DEVICES, Machine

from support import CHECKOUT, PYTHON_PATH


@pytest.fixture(scope="session")
def simulated_driver() -> Path:
    """lib/build/sim, built where it is not there."""
    if not (SIMULATED_DRIVER / "libcuda.so.1").exists():
        subprocess.run(["make", "-s", "-C", CHECKOUT / "lib", f"PYTHON={sys.executable}", "sim"], check=True)
    return SIMULATED_DRIVER


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
            "PYTHONPATH": PYTHON_PATH,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    result.configure(TWO_DEVICES)
    yield result
    for process in result.started:
        process.kill()
        process.communicate()
