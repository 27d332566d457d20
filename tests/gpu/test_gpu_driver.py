"""Facts about the driver that the library takes for granted."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

from runners import PROGRAMS


def loaded_driver() -> Path:
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in lines if "/libcuda.so" in line))


def test_every_answer_is_an_export_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "addresses"
    subprocess.run(["gcc", "-O2", str(PROGRAMS / "addresses.c"), "-ldl", "-o", str(program)], check=True)
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", loaded_driver()], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1].split("@")[0] for line in symbols.stdout.splitlines()]
    exports = "\n".join(name for name in names if name.startswith("cu"))
    result = subprocess.run([program], input=exports, capture_output=True, text=True, check=False)
    found = json.loads(result.stdout)
    assert found["exports"] > 500 and found["answers"] > 5000
    assert (found["shared"], found["strange"]) == (0, 0), result.stderr


def test_both_versions_of_the_process_list_are_the_same() -> None:
    """The second is asked where the third has longer rows (535.43 to 535.97), and where there is none."""
    program = [sys.executable, str(PROGRAMS / "process_lists.py")]
    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    assert found["is_listed"] and found["second"] == found["third"]
