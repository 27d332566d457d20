"""A DRA plugin that is killed at any instant leaves a claim prepared, or not; never half."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "killed_driver.py"


def test_killed_at_every_step_of_preparing_and_giving_back(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, tmp_path / "node"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    prepare_steps, unprepare_steps = map(int, done.stdout.split())
    assert prepare_steps > 15
    assert unprepare_steps > 5
