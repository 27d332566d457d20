"""The library's policy, compiled with sanitizers and run: no driver, no GPU, clocks of its own.

A program is NAME_test.c; a test, one of its cases.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.programs_of_c import built

pytestmark = pytest.mark.timeout(600)  # simulated time takes as long as the machine needs

HERE = Path(__file__).parent
THREADED = ["ledger", "ledger_levels", "table", "claims", "profile", "quick_clock"]
AS_ROOT = ["tenants"]  # which is to make another user's
# They take many seconds, or start processes: with sanitizers, which take as long again and longer, they run in
# `make test-all`.
SLOW = [
    ("interleaving", "two shares, and one is had again and again"),
    ("interleaving", "two shares that do not fit together"),
    ("interleaving", "what is kept fits beside the others"),
]
PROGRAMS = sorted(path.stem.removesuffix("_test") for path in HERE.glob("*_test.c"))


def cases(programs: list[str], kind: str) -> list[object]:
    """Each program with each of its cases; by itself where it has none. Without sanitizers, the slow ones alone."""
    found = []
    for program in programs:
        source = (HERE / f"{program}_test.c").read_text()
        for case in re.findall(r'\bCASE\("([^"]+)"\)', source) or [""]:
            is_slow = (program, case) in SLOW
            if kind == "plain" and not is_slow:
                continue
            marks = [pytest.mark.slow] * (is_slow or kind == "thread")
            marks += [pytest.mark.skipif(os.geteuid() != 0, reason="needs root")] * (program in AS_ROOT)
            marks += [pytest.mark.exhaustive] * (is_slow and kind == "address-undefined")
            found.append(pytest.param(program, case, id=f"{program}-{case}" if case else program, marks=marks))
    return found


def run(program: str, case: str, kind: str) -> None:
    # The tests keep what the library keeps until its process ends; what it loses shows under the simulated driver.
    result = subprocess.run(
        [built(f"{program}_test", kind), *filter(None, [case])],
        env={"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"},
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-20000:] + result.stderr[-2000:]


@pytest.mark.parametrize(("program", "case"), cases(PROGRAMS, "address-undefined"))
def test_policy(program: str, case: str) -> None:
    run(program, case, "address-undefined")


@pytest.mark.parametrize(("program", "case"), cases(PROGRAMS, "plain"))
def test_policy_at_length(program: str, case: str) -> None:
    run(program, case, "plain")


@pytest.mark.parametrize(("program", "case"), cases(THREADED, "thread"))
def test_policy_of_many_threads(program: str, case: str) -> None:
    run(program, case, "thread")
