"""`--swap` on a real engine: containers that take turns with their memory, under the guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import WITH_PROGRAMS, Cli, guarding
from support import wait_until

# The GPU has 8 GiB: two of them do not fit at once.
TURNS = ("--swap", "--mem", "7g")
CELLS = ("python3", "-u", "/programs/gpu.py", "cells", "0.1")


@pytest.fixture
def said(vgpurun: Cli) -> Iterator[Path]:
    """Keep a guard, and have what it says."""
    path = vgpurun.state_dir.parent / "guard.log"
    with guarding(vgpurun):
        yield path
    assert "Traceback" not in path.read_text()


def cells(vgpurun: Cli, name: str) -> int:
    """Return how many cells have run in a container. No byte was wrong."""
    logs = vgpurun.engine.containers.get(name).logs()
    assert b"wrong" not in logs
    return int(logs.count(b"right"))


def test_two_containers_take_turns_beside_one_without(vgpurun: Cli, debian: str, said: Path) -> None:
    fixed = vgpurun.run("-d", "--name", "fixed", "--mem", "1g", *WITH_PROGRAMS, debian, *CELLS)
    assert fixed.exit_code == 0, fixed.stderr
    for name in ("one", "two"):
        assert vgpurun.run("-d", "--name", name, *TURNS, *WITH_PROGRAMS, debian, *CELLS).exit_code == 0
    refused = vgpurun.run("-d", "--mem", "1g", debian, "sleep", "600")
    assert refused.exit_code == 125 and "0 bytes is free" in refused.stderr
    wait_until(lambda: min(cells(vgpurun, each) for each in ("one", "two", "fixed")) >= 3, "cells of all")
    seen = {name: cells(vgpurun, name) for name in ("one", "two")}
    wait_until(lambda: all(cells(vgpurun, name) > count for name, count in seen.items()), "another turn of each")
    lines = vgpurun("ps", "-a", *vgpurun.driver).stdout.splitlines()
    status = {name: next(line for line in lines if name in line) for name in ("one", "two", "fixed")}
    assert "turn" not in status["fixed"]
    assert sum("(has its turn)" in each for each in status.values()) <= 1
    assert sum("Waits for its turn" in each for each in status.values()) >= 1
    shown = json.loads(vgpurun("smi", *vgpurun.driver, "--format", "json").stdout)
    devices = {each["name"]: each["devices"][0] for each in shown["containers"]}
    assert [devices[name]["takes_turns"] for name in ("one", "two", "fixed")] == [True, True, False]

    assert vgpurun("rm", "-f", "one").exit_code == 0
    before = cells(vgpurun, "two")
    wait_until(lambda: cells(vgpurun, "two") > before + 10, "cells of the one that is left")


def test_one_that_is_stopped_and_started_waits_for_its_turn(vgpurun: Cli, debian: str, said: Path) -> None:
    for name in ("one", "two"):
        assert vgpurun.run("-d", "--name", name, *TURNS, *WITH_PROGRAMS, debian, *CELLS).exit_code == 0
    wait_until(lambda: min(cells(vgpurun, each) for each in ("one", "two")) >= 1, "cells of both")
    assert vgpurun("stop", "-t", "0", "one").exit_code == 0
    before = cells(vgpurun, "one")
    assert vgpurun("update", *vgpurun.driver, "--mem", "6g", "two").exit_code == 0
    assert vgpurun("start", *vgpurun.driver, "one").exit_code == 0
    wait_until(lambda: cells(vgpurun, "one") > before, "cells after the start")
    after = cells(vgpurun, "two")
    wait_until(lambda: cells(vgpurun, "two") > after, "a turn of the other, with its new limit")


def test_one_that_is_paused_in_its_turn(vgpurun: Cli, debian: str, said: Path) -> None:
    """The paused one keeps the GPU; `ps` says what the other waits for, and its turn comes when the first goes on."""
    for name in ("one", "two"):
        assert vgpurun.run("-d", "--name", name, *TURNS, *WITH_PROGRAMS, debian, *CELLS).exit_code == 0
    wait_until(lambda: min(cells(vgpurun, each) for each in ("one", "two")) >= 1, "cells of both")
    container = vgpurun.engine.containers.get("one")

    def is_paused_in_turn() -> bool:
        before = cells(vgpurun, "one")
        wait_until(lambda: cells(vgpurun, "one") > before, "its turn")
        container.pause()
        shown = vgpurun("ps", "-a", *vgpurun.driver).stdout
        if shown.count("Waits for its turn") == 1 and "(Paused)" in shown:
            return True
        container.unpause()  # its turn ended in between
        return False

    wait_until(is_paused_in_turn, "a pause in its turn")
    try:
        wait_until(lambda: "(one keeps the GPU: " in vgpurun("ps", "-a", *vgpurun.driver).stdout, "a word of it")
    finally:
        container.unpause()
    seen = {name: cells(vgpurun, name) for name in ("one", "two")}
    wait_until(lambda: all(cells(vgpurun, name) > count for name, count in seen.items()), "further cells of both")


def test_without_a_guard(vgpurun: Cli, debian: str) -> None:
    vgpurun.run("-d", *TURNS, debian, "sleep", "600").assert_refused("--swap needs vgpurun guard")
