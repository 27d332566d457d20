"""Moves under kill -9 of everybody: no process lost or left locked, no byte wrong, nothing reserved twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import pytest

from support import ROUNDS
from support.programs import text_of
from support.suspension import Guard, Host, Program, rounds_under_fire
from vgpurun.host import checkpoints, visible
from vgpurun.limits import limits_file
from vgpurun.suspend import record, resuming, targets, transition

pytestmark = pytest.mark.slow
HELD_MIB = 100 + 4 + 2 + 6


def move_without_end(target: targets.Target, *before: Callable[[], None]) -> None:
    """Move what has one GPU of two to the other one, and so on, after something else."""
    gpus = visible.visible_gpus(True)
    for each in before:
        each()
    print("ready", flush=True)
    while True:
        with checkpoints.Checkpoints(visible.libcuda(True)) as driver:
            own = transition.gpus_of(target, gpus)
            others = [gpu for gpu in gpus if gpu not in own]
            resuming.move_over(target, gpus, driver, others, None, transition.Wishes())
        print("round", flush=True)


def move_a_process() -> None:
    move_without_end(targets.process_numbered(sys.argv[1]))


def cut_off_after(steps: int) -> None:
    """Let this process be killed right after the step that follows so many."""
    count = 0

    def cut(function: Callable[..., object]) -> Callable[..., object]:
        def cut_off(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            result = function(*arguments, **named)
            if count > steps:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return cut_off

    record.write, record.forget = cut(record.write), cut(record.forget)
    limits_file.set_suspended, limits_file.write_gpus = cut(limits_file.set_suspended), cut(limits_file.write_gpus)
    driver = checkpoints.Checkpoints
    driver.lock, driver.checkpoint = cut(driver.lock), cut(driver.checkpoint)
    driver.restore, driver.unlock = cut(driver.restore), cut(driver.unlock)


def move_that_is_cut_off(host: Host, program: Program, steps: int) -> None:
    def move() -> None:
        move_without_end(targets.process_numbered(sys.argv[1]), lambda: cut_off_after(steps))

    command = [sys.executable, "-c", text_of(move), program.pid]
    cut = subprocess.run(command, env=host.environment, capture_output=True)
    assert cut.returncode == -signal.SIGKILL, cut.stderr


def check(host: Host, program: Program) -> int:
    """A move that was cut off is finished, or undone: on one GPU alone, with every byte. Return on which."""
    assert program.resume().returncode == 0
    assert program.state() == "RUNNING"
    assert not (program.folder / "suspension").exists()
    assert program.asks("check") == "right 4"
    gpu = host.uuids.index(program.asks("uuid"))
    assert host.used_mib() == [HELD_MIB * (number == gpu) for number in range(2)]
    shown = json.loads(host.vgpurun("free", "--driver", "sim", "--format", "json").stdout)
    reserved = [each["memory_reserved_bytes"] >> 20 for each in shown["gpus"]]
    assert reserved == [1500 * (number == gpu) for number in range(2)]
    return gpu


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_many_moves(host: Host, start: Callable[..., Program]) -> None:
    """Killed at any moment: also between the steps below, and within a call of the driver."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    assert rounds_under_fire(program, text_of(move_a_process), ROUNDS, check) >= ROUNDS


def test_each_moment_of_a_move(host: Host, start: Callable[..., Program]) -> None:
    """Killed after each of its steps in turn."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    seen, ends = set(), []
    for step in range(13):
        before = host.uuids.index(program.asks("uuid"))
        move_that_is_cut_off(host, program, step)
        suspension = program.folder / "suspension"
        seen.add(json.loads(suspension.read_text())["phase"] if suspension.exists() else "none")
        if suspension.exists():
            assert program.resume().stdout == f"process {program.pid}: what was cut off is finished; it runs\n"
        ends.append(check(host, program) != before)
    assert seen == {"suspending", "moving", "none"}
    assert ends[0] is False and True in ends


def test_the_guard_finishes_what_was_cut_off(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    """Cut off before all are off, before they are back, and before they go on; a guard at it is killed as well."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    for step in (5, 7, 9):
        move_that_is_cut_off(host, program, step)
        time.sleep(random.uniform(0, 1))
        guard.kill()
        assert program.asks("check") == "right 4"
        assert program.resume().stdout == f"process {program.pid}: not suspended\n", "the guard has finished it"
        check(host, program)


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_the_moved_program_is_killed(host: Host, start: Callable[..., Program], rounds: int) -> None:
    chance = random.Random(os.getpid())
    for _ in range(rounds):
        program = start("--mem", "1500m", "--gpus", "device=0")
        moving = host.start("move", "--driver", "sim", "--gpus", "1", "--process", program.pid)
        time.sleep(chance.uniform(0.3, 1.2))
        program.kill()
        moving.communicate(timeout=60)
        assert host.used_mib() == [0, 0]
    for gpu in ("device=0", "device=1"):
        assert start("--mem", "2g", "--gpus", gpu).asks("check") == "right 4"


def refuse_the_third() -> None:
    """Let the driver bring two processes of this one's move back and no third one."""
    restore, restored = checkpoints.Checkpoints.restore, 0

    def refuse(self: checkpoints.Checkpoints, pid: int, onto: Mapping[str, str] = {}) -> None:
        nonlocal restored
        restored += 1
        if restored == 3:
            raise checkpoints.CheckpointError("restore", pid, "CUDA_ERROR_NOT_SUPPORTED")
        restore(self, pid, onto)

    checkpoints.Checkpoints.restore = refuse


@pytest.mark.parametrize(
    "step", [None, 18, *(pytest.param(step, marks=pytest.mark.exhaustive) for step in (16, 19, 21))]
)
def test_one_of_four_cannot_get_there(host: Host, start: Callable[..., Program], step: int | None) -> None:
    """Programs that are there already come back to where they were, also where that is cut off in its turn."""
    made = host.vgpurun(
        "slice", "create", "team", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0", "--movable"
    )
    assert made.returncode == 0, made.stderr
    members = [start("--slice", "team") for _ in range(4)]

    def move() -> None:
        cut = () if step is None else (lambda: cut_off_after(step),)
        move_without_end(targets.slice_named("team"), refuse_the_third, *cut)

    command = [sys.executable, "-c", text_of(move)]
    failed = subprocess.run(command, env=host.environment, capture_output=True, text=True)
    if step is None:
        assert "does not bring process" in failed.stderr and "CUDA_ERROR_NOT_SUPPORTED" in failed.stderr
    else:
        assert failed.returncode == -signal.SIGKILL, failed.stderr
        assert host.vgpurun("resume", "--driver", "sim", "--slice", "team").returncode == 0
    assert [each.asks("check") for each in members] == ["right 4"] * 4
    assert {each.asks("uuid") for each in members} <= set(host.uuids)
    assert len({each.asks("uuid") for each in members}) == 1
    assert sorted(host.used_mib()) == [0, 4 * HELD_MIB]
