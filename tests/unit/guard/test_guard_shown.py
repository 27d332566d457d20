"""The guard's actions, as verbs and metrics show them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import GIB
from guard_world import World

from vgpurun.console.messages import say
from vgpurun.diagnostics import doctor
from vgpurun.diagnostics.doctor import OK, WARNING
from vgpurun.guard.run import say_to_journal
from vgpurun.inventory import guarded
from vgpurun.metrics.snapshot import Reader

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def acted(world: Callable[..., World]) -> World:
    """The guard has frozen one container, and warned of another."""
    made = world(outside="warn")
    made.put(made.add("train"), 2 * GIB)
    made.put("", GIB, command="cheater", user="bob")
    made.run(20)
    return made


def test_history(acted: World, run: Run, tmp_path: Path) -> None:
    acted.state.close()
    here = {"VGPURUN_STATE_DIR": str(tmp_path)}
    table = run("history", "--by", "action", "--since", "1970-01-01", **here).stdout.splitlines()
    assert table[0].split() == ["TIME", "ACTION", "CAUSE", "NAME", "USER", "WHY"]
    assert "freeze" in table[1] and "train" in table[1] and "it holds 2 GiB of 1 GiB" in table[1]
    assert "warn" in table[2] and "cheater" in table[2] and "bob" in table[2]
    rows = json.loads(run("history", "--by", "action", "--since", "1970-01-01", "--format", "json", **here).stdout)
    assert [(row["verb"], row["cause"], row["name"]) for row in rows] == [
        ("freeze", "memory", "train"), ("warn", "outside", "cheater"),
    ]  # fmt: skip
    comma = run("history", "--by", "action", "--since", "1970-01-01", "--format", "csv", **here).stdout
    assert [row["user"] for row in csv.DictReader(io.StringIO(comma))] == ["ann", "bob"]
    assert run("history", "--by", "action", **here).stdout.splitlines()[1:] == [], "not in the last day"
    refused = run("history", "--by", "action", "--plot", "x.png", **here)
    assert refused.returncode == 125 and "--plot" in refused.stderr


def test_doctor(acted: World) -> None:
    found = doctor.check_guard()
    assert (found.status, found.words) == (WARNING, "it runs, and has frozen 1 container")
    acted.containers[next(iter(acted.containers))].cgroup.thaw()
    acted.run(2)
    assert doctor.check_guard() == doctor.Finding("guard", OK, "it runs")
    acted.state.close()
    assert "none runs" in doctor.check_guard().words


def test_doctor_names_launches(world: Callable[..., World]) -> None:
    made = world()
    launch = made.add("process 1", is_launch=True)
    made.put(launch, 2 * GIB)
    made.run(5)
    assert doctor.check_guard().words == f"it runs, and has frozen process {launch} of vgpurun local"
    made.put(made.add("b"), 2 * GIB)
    made.run(5)
    assert doctor.check_guard().words == f"it runs, and has frozen 1 container and process {launch} of vgpurun local"
    made.containers[launch].cgroup.thaw()
    made.run(2)
    assert f"process {launch} was thawed by somebody else" in made.said


def test_thaw(world: Callable[..., World], run: Run, tmp_path: Path) -> None:
    """Whatever it has frozen, where no engine runs."""
    made = world()
    launch, other = made.add("process 1", is_launch=True), made.add("process 2", slice_name="team", is_launch=True)
    part, container = made.add("process 3", is_launch=True, team=GIB), made.add("b", slice_name="team")
    for each in (launch, other, part, container):
        made.put(each, 2 * GIB)
    made.run(5)

    def thaw(*words: str) -> tuple[int, str, str]:
        seen = run("thaw", *words, VGPURUN_STATE_DIR=str(tmp_path))
        return seen.returncode, seen.stdout, seen.stderr

    assert thaw("--process", launch) == (0, f"process {launch}\n", "")
    assert [made.is_frozen(each) for each in (launch, other, part, container)] == [False, True, True, True]
    code, said, _ = thaw("--slice", "team", "--process", "77")
    assert code == 1 and set(said.splitlines()) == {f"process {other}", f"process {part}", container[:12]}
    assert [made.is_frozen(each) for each in (launch, other, part, container)] == [False] * 4
    made.run(1)
    assert thaw("--process", launch) == (1, "", f"vgpurun: process {launch} is not frozen by the guard\n")
    assert thaw("--slice", "team") == (1, "", "vgpurun: nothing in slice team is frozen by the guard\n")
    assert thaw()[0] == 125


def test_metrics(acted: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client import generate_latest

    from support.scraping import parse, value
    from vgpurun.metrics.collector import make_registry

    reader = Reader(lambda _: None, lambda: [])
    series = parse(generate_latest(make_registry(reader)).decode())
    assert value(series, "vgpurun_guard_running") == 1
    assert value(series, "vgpurun_guard_actions_total", action="freeze", cause="memory") == 1
    assert value(series, "vgpurun_guard_actions_total", action="warn", cause="outside") == 1
    acted.state.close()
    monkeypatch.setattr("vgpurun.metrics.snapshot._FRESH_S", -1.0)
    series = parse(generate_latest(make_registry(reader)).decode())
    assert value(series, "vgpurun_guard_running") == 0


def test_a_container_held_by_no_guard_runs(acted: World) -> None:
    (container,) = guarded.stopped()
    acted.state.stopped[container] = replace(acted.state.stopped[container], verb=guarded.HOLD, cause="compute")
    acted.state.write()
    assert str(guarded.stopped()[container]) == "held by the guard: compute"
    acted.state.close()
    assert guarded.stopped() == {}


def test_what_is_said_steers_no_terminal_and_forges_no_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say("a\n\tb\x1b[2J\udcff")
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    say_to_journal("a\n<0>b\udcff")
    assert capfd.readouterr().err == "vgpurun: a\n\tb\ufffd[2J\ufffd\n<5>a\ufffd<0>b\ufffd\n"
