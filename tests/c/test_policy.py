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
TABLES = ["alone", "company", "evasions", "spins", "tenants", "timeline", "windows"]  # rows.h
THREADED = ["ledger", "ledger_levels", "table", "claims", "turns", "profile", "quick_clock"]
REAL_TIME = ["turns"]  # on this machine's clock
AS_ROOT = ["folders"]  # which is to make another user's
# They take many seconds of the model's time, or start processes: with sanitizers, which take as long again and longer,
# they run in `make test-all`.
SLOW = [
    *TABLES, "hand_over", "shares", "strangers", "priorities", ("meter", "shares"),
    ("interleaving", "two shares, and one is had again and again"),
    ("interleaving", "two shares that do not fit together"),
    ("interleaving", "what is kept fits beside the others"),
]  # fmt: skip
# Others of the same program fail with them, or are the same with one seed and fewer limits; hand_over has what "turns"
# shows once more, on simulated time.
EXHAUSTIVE = [
    ("alone", "kernels and graphs"),
    ("alone", "hosts at other limits"),
    ("company", "faults, with another seed"),
    ("company", "policies, with another seed"),
    ("company", "changes, with another seed"),
    ("company", "flat out"),
    ("company", "priority"),
    ("company", "long kernels beside short ones"),
    ("hand_over", "three processes, one killed"),
    ("spins", "collectives of two tenants"),
    ("spins", "collectives"),
    ("spins", "exchanges of two tenants, with more seeds"),
    ("strangers", "two"),
    ("strangers", "one without a limit"),
    ("strangers", "one that may burst"),
    ("tenants", "kernels of 50 us"),
    ("turns", "two share"),
    ("turns", "endless work loses its turn"),
    ("turns", "whatever is in the file of another"),
]
PROGRAMS = sorted(path.stem.removesuffix("_test") for path in HERE.glob("*_test.c"))


def cases(programs: list[str], kind: str) -> list[object]:
    """Each program with each of its cases; by itself where it has none. Without sanitizers, the slow ones alone."""
    found = []
    for program in programs:
        source = (HERE / f"{program}_test.c").read_text()
        for case in re.findall(r'\bCASE\("([^"]+)"\)', source) or [""]:
            is_slow = program in SLOW or (program, case) in SLOW
            if kind == "plain" and not is_slow:
                continue
            marks = [pytest.mark.real_time] * (program in REAL_TIME)
            marks += [pytest.mark.slow] * (is_slow or kind == "thread")
            marks += [pytest.mark.skipif(os.geteuid() != 0, reason="needs root")] * (program in AS_ROOT)
            marks += [pytest.mark.exhaustive] * (
                (program, case) in EXHAUSTIVE
                or (program in REAL_TIME and kind == "thread")
                or (is_slow and kind == "address-undefined")
            )
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


@pytest.mark.parametrize(("program", "case"), cases(sorted({*PROGRAMS} - {*TABLES}), "address-undefined"))
def test_policy(program: str, case: str) -> None:
    run(program, case, "address-undefined")


@pytest.mark.parametrize(("program", "case"), cases(PROGRAMS, "plain"))
def test_policy_at_length(program: str, case: str) -> None:
    run(program, case, "plain")


@pytest.mark.parametrize("program", REAL_TIME)
def test_what_measures_real_time_is_built(program: str) -> None:
    """Beside other tests: those that measure wait for no compiler."""
    assert built(f"{program}_test", "address-undefined").exists()


@pytest.mark.parametrize(("program", "case"), cases(THREADED, "thread"))
def test_policy_of_many_threads(program: str, case: str) -> None:
    run(program, case, "thread")
