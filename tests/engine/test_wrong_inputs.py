"""Wrong inputs as a newcomer gives them: one line, the right exit code, nothing left. `wrong_inputs.txt` lists them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli import Cli, Result

LINES = (Path(__file__).parent / "wrong_inputs.txt").read_text().splitlines()
CASES = [line for line in LINES if not line.startswith("#")]
PARTS = 6  # a single test would take long on a busy machine


def mistakes(line: str, result: Result) -> list[str]:
    """Return what is wrong with the answer to a line."""
    code, _, given = line.partition(" ")
    said = result.stderr.splitlines()
    found = [] if result.exit_code == int(code) else [f"exit code {result.exit_code}"]
    if len(said) != 1 or not said[0].startswith("vgpurun: ") or "report it" in said[0]:
        found.append(f"said {result.stderr!r}")
    if result.stdout:
        found.append(f"printed {result.stdout!r}")
    return [f"{given}: {each}" for each in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(2, PARTS))]
)
def test_each_has_one_line_and_its_code_and_leaves_nothing(vgpurun: Cli, debian: str, part: int) -> None:
    assert len(CASES) >= 100
    vgpurun.environment["VGPURUN_DRIVER"] = "sim"

    def answer(line: str) -> list[str]:
        arguments = [debian if word == "IMAGE" else word for word in shlex.split(line.partition(" ")[2])]
        return mistakes(line, vgpurun(*arguments))

    assert [each for line in CASES[part::PARTS] for each in answer(line)] == []
    vgpurun.assert_nothing_left()
