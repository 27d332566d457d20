"""Turns with memory (--swap) on simulated GPUs: programs that together want more than there is, under the guard."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import ROUNDS, assert_refused, wait_until
from support.suspension import PATTERNS, Guard, Host, Program
from vgpurun.inventory.swap_counts import read_swaps
from vgpurun.limits.usage_file import read_usage
from vgpurun.suspend.turns import LEAST_TURN_S

TRAINING = PATTERNS.with_name("training.py")
MOST = ("--driver", "sim", "--swap", "--mem", "90%", "--gpus", "device=0")
MOST_MIB = 1650  # free of 2048, beside a context


def train(host: Host, steps: int, mib: int = MOST_MIB, options: tuple[str, ...] = MOST) -> subprocess.Popen[str]:
    return host.start("local", *options, "--", sys.executable, "-u", str(TRAINING), str(mib), str(steps), "50")


def steps_of(training: subprocess.Popen[str]) -> list[float]:
    """Wait for its end, and return when its steps began, those that were not read yet. No byte was wrong."""
    out, err = training.stdout.read(), training.stderr.read()  # communicate() would lose what readline() has read ahead
    training.wait(timeout=20)
    *steps, last = out.splitlines()
    assert last == "right", (out[-500:], err)
    return [float(each) for each in steps]


def test_two_trainings_of_most_of_the_memory_both_finish(host: Host, guard: Guard) -> None:
    first, second = train(host, 100), train(host, 100)
    most: dict[Path, int] = {}
    launches: dict[Path, int] = {}
    while first.poll() is None or second.poll() is None:
        assert host.used_mib()[0] <= 2048
        for folder in (host.folder / "state" / "containers").glob("*"):
            most[folder] = max(most.get(folder, 0), read_swaps(folder).swaps)
            for each in read_usage(folder / "run" / "usage", host.uuids[:1]) or ():
                launches[folder] = max(launches.get(folder, 0), each.launches)
        time.sleep(0.1)
    began, other = steps_of(first), steps_of(second)
    assert len(began) == len(other) == 100
    assert began[0] < other[-1] and other[0] < began[-1], "they took turns"
    turns = sum(most.values()) / 2  # each is a way in and a way out
    took_s = max(began[-1], other[-1]) - min(began[0], other[0])
    assert turns <= took_s / LEAST_TURN_S + 2, "and whole ones: one at work is not taken for idle"
    assert min(launches.values()) > 50, "each is measured in its whole turn, alone on the GPU as it is"
    assert host.used_mib() == [0, 0]


@pytest.mark.exhaustive  # tests/unit/suspend/test_turns_of_memory.py has it on simulated time
def test_three_get_equal_turns(host: Host, guard: Guard) -> None:
    trainings = [train(host, 100_000) for _ in range(3)]
    try:
        began_s = max(float(each.stdout.readline()) for each in trainings if each.stdout)  # all of them want turns now
        time.sleep(16)
    finally:
        for each in trainings:
            each.terminate()
    steps = [each.stdout.read().splitlines()[:-1] for each in trainings if each.stdout]  # the last may be cut off
    had = [sum(float(step) > began_s for step in each) for each in steps]
    assert min(had) > 0.4 * max(had), had  # in two or three turns each


def test_a_notebook_beside_a_training_gets_its_turn(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    training = train(host, 240)  # twice the turns that it has beside the notebook
    notebook = start(*MOST[2:])
    for _ in range(3):
        assert notebook.asks("check") == "right 4"
        time.sleep(1)
    assert training.poll() is None, "it was there in between"
    steps_of(training)


def test_one_with_turns_beside_one_without(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    """The one without keeps all that it has, and room is never reserved twice."""
    fixed = start("--mem", "500m", "--gpus", "device=0")
    options = (*MOST[:3], "--mem", "1500m", "--gpus", "device=0")
    trainings = [train(host, 60, 1300, options) for _ in range(2)]
    for each in trainings:
        assert each.stdout and each.stdout.readline()
    refused = host.vgpurun("local", "--driver", "sim", "--mem", "100m", "--gpus", "device=0", "--", "true")
    assert refused.returncode == 125 and "48 MiB is free" in refused.stderr
    assert_refused(host.vgpurun("local", *MOST, "--", "true"), "1.51 GiB is free")
    folder = fixed.folder
    for _ in range(10):
        assert fixed.asks("check") == "right 4"
        assert not (folder / "suspension").exists()
    for each in trainings:
        steps_of(each)


def test_a_slice_takes_its_turns_as_a_whole(host: Host, guard: Guard) -> None:
    assert host.vgpurun("slice", "create", *MOST, "team").returncode == 0
    team = ("--driver", "sim", "--slice", "team")
    members = [train(host, 30, 700, team) for _ in range(2)]
    other = train(host, 30)
    for each in (*members, other):
        assert len(steps_of(each)) == 30
    assert host.vgpurun("slice", "rm", "--driver", "sim", "team").returncode == 0


def test_a_launch_without_a_guard_is_refused(host: Host) -> None:
    for words in (("local", *MOST, "--", "true"), ("slice", "create", *MOST, "team")):
        done = host.vgpurun(*words)
        assert done.returncode == 125 and "--swap needs vgpurun guard" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_launch_under_an_old_driver_or_without_a_limit_is_refused(host: Host, guard: Guard) -> None:
    done = host.vgpurun("local", "--driver", "sim", "--swap", "--", "true")
    assert done.returncode == 125 and "--swap takes turns with a memory limit" in done.stderr
    host.configure(2048, extra="driver_version: 550.54.15\n")
    assert_refused(host.vgpurun("local", *MOST, "--", "true"), "driver 550.54.15 takes no program off a GPU")


def test_who_has_the_gpu_is_shown(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    first, second = start(*MOST[2:]), start(*MOST[2:])
    assert first.asks("take 1000") == "taken"
    assert second.asks("check") == "right 4"
    shown = json.loads(host.vgpurun("smi", "--driver", "sim", "--format", "json").stdout)
    by_id = {each["id"]: each["devices"][0] for each in shown["processes"]}
    assert [by_id[each.pid]["swapped"] for each in (first, second)] == [True, False]
    assert by_id[first.pid]["memory_used_bytes"] == 0 and by_id[first.pid]["memory_suspended_bytes"] > 1000 << 20
    assert "swapped" in host.vgpurun("smi", "--driver", "sim").stdout


def copy_slowly(host: Host) -> None:
    """Let a gigabyte take a second on its way off the GPU, or back."""
    config = host.folder / "sim.yaml"
    config.write_text(config.read_text().replace("checkpoint_mib_per_ms: 100", "checkpoint_mib_per_ms: 1"))


def test_the_next_one_comes_back_while_the_other_leaves(
    host: Host, guard: Guard, start: Callable[..., Program]
) -> None:
    """The next one comes back early where both fit in what is reserved for turns: else when the other has left."""
    copy_slowly(host)
    first, second = start(*MOST[2:]), start(*MOST[2:])
    for each in (first, second):
        assert each.asks("take 600") == "taken"
    for each in (first, second):
        each.tell("check")
        most_mib = 0
        while each.is_silent(0.02):
            most_mib = max(most_mib, host.used_mib()[0])
        assert each.hears() == "right 4"
        assert most_mib > 1400, "both were there, on their ways"
        assert host.used_mib()[0] < 800, "and one of them in its turn"
    assert second.asks("take 600") == "taken"
    first.tell("check")
    while first.is_silent(0.02):
        assert host.used_mib()[0] < 1800
    assert first.hears() == "right 4"


def test_one_comes_back_while_the_other_cannot_leave(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    """The next one goes again, and waits as before: with every byte, and not locked."""
    copy_slowly(host)
    first = start(*MOST[2:])
    assert first.asks("take 600") == "taken"
    second = start(*MOST[2:], VGPUSIM_CHECKPOINT="refuse")
    assert second.asks("take 600") == "taken"
    first.tell("check")
    guard.says("the driver does not support it for this process")
    wait_until(lambda: host.used_mib()[0] <= 800)
    assert first.is_silent(3)
    assert second.asks("check") == "right 4"
    assert host.used_mib()[0] < 800, "nobody comes back for one that stayed before"
    second.kill()
    assert first.hears() == "right 4"


def test_one_that_is_stopped_in_its_turn(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    """The stopped one keeps the GPU; the other says what it waits for, and comes when the first goes on."""
    first, second = start(*MOST[2:]), start(*MOST[2:])
    assert first.asks("take 1000") == "taken"
    stopped = first.child()
    os.kill(stopped, signal.SIGSTOP)
    try:
        second.tell("check")
        told = f"process {stopped} of process {first.pid} is stopped"
        guard.says(told)
        line = f"process {second.pid} waits for its turn: process {first.pid} keeps the GPU: {told}\n"
        wait_until(lambda: line in host.vgpurun("smi", "--driver", "sim").stdout, line)
        assert second.is_silent(3)
        assert guard.said.read_text().count(told) == 1
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert second.hears() == "right 4"
    assert first.asks("check") == "right 4"
    assert line not in host.vgpurun("smi", "--driver", "sim").stdout


def test_suspend_takes_it_out_of_the_turns_until_it_is_resumed(
    host: Host, guard: Guard, start: Callable[..., Program]
) -> None:
    """Its part of the reservation is free meanwhile; back in, it waits for its turn as before."""
    program = start(*MOST[2:])
    assert program.suspend("--hold").returncode == 0
    fixed = start("--mem", "2g", "--gpus", "device=0")
    program.tell("check")
    assert program.is_silent(1)
    assert_refused(program.resume(), "is free")
    fixed.end()
    other = start(*MOST[2:])
    assert other.asks("take 1000") == "taken"
    assert program.resume().returncode == 0
    assert program.hears() == "right 4"
    assert other.asks("check") == "right 4"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [2, pytest.param(ROUNDS // 5, marks=pytest.mark.exhaustive)])
def test_the_guard_a_program_and_the_command_line_are_killed(
    host: Host, guard: Guard, start: Callable[..., Program], rounds: int
) -> None:
    """At any moment: no program is lost or stays locked, no byte is wrong, and what is reserved is what it was."""
    chance = random.Random(os.getpid())
    keeper = start(*MOST[2:])
    assert keeper.asks("take 1000") == "taken"
    for round_number in range(rounds):
        training, victim = train(host, 30), start(*MOST[2:])
        time.sleep(chance.uniform(0, 2))
        command = host.start("suspend" if round_number % 2 else "resume", "--driver", "sim", "--process", keeper.pid)
        time.sleep(chance.uniform(0, 1))
        command.kill()
        command.communicate()
        victim.kill()
        guard.kill()
        assert keeper.asks("check") == "right 4"
        steps_of(training)
        refused = host.vgpurun("local", "--driver", "sim", "--mem", "300m", "--gpus", "device=0", "--", "true")
        assert refused.returncode == 125 and "is free" in refused.stderr, "the turns have their reservation"
    keeper.end()
    assert host.vgpurun("local", "--driver", "sim", "--mem", "2g", "--gpus", "device=0", "--", "true").returncode == 0
