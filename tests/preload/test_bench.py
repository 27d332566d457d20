"""The benchmarks run, on the simulated GPU: what they measure there is not looked at."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from support import CHECKOUT

pytestmark = pytest.mark.slow

BENCH = CHECKOUT / "tests" / "bench"
COMPUTE = BENCH / "compute"


def measure(sandbox: Sandbox, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **sandbox.environment,
        "PATH": f"{SIMULATED_DRIVER}:{sandbox.environment['PATH']}",
        "VGPURUN_DRIVER": "sim",
        "VGPURUN_STATE_DIR": str(sandbox.folder),
    }
    command = [sys.executable, str(COMPUTE), "--seconds", "0.5", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "compute.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.exhaustive
def test_each_measurement_is_a_row(sandbox: Sandbox, tmp_path: Path) -> None:
    """On one GPU, on several at once, and on one that cannot be made here."""
    limits = ("--limits", "50", "--out", str(tmp_path / "out"))
    result = measure(sandbox, "--gpus", "all", "--only", "two-gpus", "--programs", "collectives,exchanges", *limits)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [(row["table"], row["case"], row["limits"]) for row in rows(tmp_path / "out")] == [
        *(("two-gpus", "collectives", limit) for limit in ("50", "50 / 50")),
        *(("two-gpus", "exchanges", limit) for limit in ("99", "50", "50 / 50", "100 / 100")),
    ]
    result = measure(sandbox, "--gpus", "all", "--only", "shares", "--programs", "1ms,nothing", *limits)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "| shares | nothing | could not be measured: RuntimeError: ended with 2" in result.stdout
    measured = rows(tmp_path / "out")
    assert [(row["table"], row["case"], row["limits"]) for row in measured] == [("shares", "1ms", "50")]
    assert float(measured[0]["share %"]) > 0 and float(measured[0]["native /s"]) > 0
    assert "Simulated" in measured[0]["gpu"]
    assert (tmp_path / "out" / "compute.svg").read_text().lstrip().startswith("<?xml")


def test_the_page_has_the_figures_that_were_measured() -> None:
    command = [sys.executable, str(COMPUTE / "page.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("option", "heads"),
    [
        ("--setting=--profile", ["native, ns", "--profile"]),
        pytest.param("--shares", ["one share, ns", "two shares to one"], marks=pytest.mark.exhaustive),
    ],
)
def test_the_costs_are_a_table(sandbox: Sandbox, option: str, heads: list[str]) -> None:
    """Calls through the library are timed against the driver's own, in one process."""
    command = [sys.executable, str(BENCH / "costs.py"), "1", "--launches", option]
    result = subprocess.run(
        command, env=sandbox.environment, capture_output=True, text=True, timeout=100, check=False, cwd=sandbox.folder
    )
    assert result.returncode == 0, result.stderr
    head, _, *calls = [line.strip("|").split("|") for line in result.stdout.splitlines() if line.startswith("|")]
    assert [each.strip() for each in head] == ["call", *heads]
    assert len(calls) == 3 and all(float(cells[1]) > 0 for cells in calls)


@pytest.mark.exhaustive  # test_suspend.py has what it measures; this says that the bench runs
def test_suspend(built_library: Path) -> None:
    command = [sys.executable, str(BENCH / "suspend.py"), "--gib", "1", "--times", "2", "--driver", "sim"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    heading, *rows = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    assert [dict(zip(heading, row, strict=True))["time"] for row in rows] == ["1", "2"]
