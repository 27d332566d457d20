"""Moves under kill -9 of everybody: no process lost or left locked, no byte wrong, nothing reserved twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from support import ROUNDS
from support.suspension import Guard, Host, Program, rounds_under_fire

pytestmark = pytest.mark.slow
HELD_MIB = 100 + 4 + 2 + 6
LOOP = """
import sys
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.suspend.resuming import move_over
from vgpurun.suspend.targets import process_numbered
from vgpurun.suspend.transition import Wishes, gpus_of
gpus, target = visible_gpus(True), process_numbered(sys.argv[1])
print("ready", flush=True)
while True:
    with Checkpoints(libcuda(True)) as driver:
        own = gpus_of(target, gpus)
        move_over(target, gpus, driver, [gpu for gpu in gpus if gpu not in own], None, Wishes())
    print("round", flush=True)
"""
CUT = """
import os, signal
from vgpurun.limits import limits_file
from vgpurun.suspend import record
count = 0
def cut(function):
    def cut_off(*arguments, **named):
        global count
        count += 1
        result = function(*arguments, **named)
        if count > STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return cut_off
record.write, record.forget = cut(record.write), cut(record.forget)
limits_file.set_suspended, limits_file.write_gpus = cut(limits_file.set_suspended), cut(limits_file.write_gpus)
Checkpoints.lock, Checkpoints.checkpoint = cut(Checkpoints.lock), cut(Checkpoints.checkpoint)
Checkpoints.restore, Checkpoints.unlock = cut(Checkpoints.restore), cut(Checkpoints.unlock)
"""


def check(host: Host, program: Program) -> int:
    """A move that was cut off is finished, or undone: on one GPU alone, with every byte. Return on which."""
    back = program.resume()
    assert back.returncode == 0, back.stderr
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
    assert rounds_under_fire(program, LOOP, ROUNDS, check) >= ROUNDS


def test_each_moment_of_a_move(host: Host, start: Callable[..., Program]) -> None:
    """Killed after each of its steps in turn."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    seen, ends = set(), []
    for step in range(13):
        before = host.uuids.index(program.asks("uuid"))
        code = LOOP.replace('print("ready", flush=True)', CUT.replace("STEP", str(step)))
        cut = subprocess.run([sys.executable, "-c", code, program.pid], env=host.environment, capture_output=True)
        assert cut.returncode == -signal.SIGKILL, cut.stderr
        record = program.folder / "suspension"
        seen.add(json.loads(record.read_text())["phase"] if record.exists() else "none")
        if record.exists():
            assert program.resume().stdout == f"process {program.pid}: what was cut off is finished; it runs\n"
        ends.append(check(host, program) != before)
    assert seen == {"suspending", "moving", "none"}
    assert ends[0] is False and True in ends


def test_the_guard_finishes_what_was_cut_off(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    """Cut off before all are off, before they are back, and before they go on; a guard at it is killed as well."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    for step in (5, 7, 9):
        code = LOOP.replace('print("ready", flush=True)', CUT.replace("STEP", str(step)))
        cut = subprocess.run([sys.executable, "-c", code, program.pid], env=host.environment, capture_output=True)
        assert cut.returncode == -signal.SIGKILL, cut.stderr
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


PARTLY = """
from vgpurun.errors import SuspendError
from vgpurun.host.checkpoints import CheckpointError
restore, restored = Checkpoints.restore, 0
def refuse_the_third(self, pid, onto={}):
    global restored
    restored += 1
    if restored == 3:
        raise CheckpointError("restore", pid, "CUDA_ERROR_NOT_SUPPORTED")
    restore(self, pid, onto)
Checkpoints.restore = refuse_the_third
"""


@pytest.mark.parametrize(
    "step", [None, 18, *(pytest.param(step, marks=pytest.mark.exhaustive) for step in (16, 19, 21))]
)
def test_one_of_four_cannot_get_there(host: Host, start: Callable[..., Program], step: int | None) -> None:
    """Those that are there already come back to where they were, also where that is cut off in its turn."""
    made = host.vgpurun(
        "slice", "create", "team", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0", "--movable"
    )
    assert made.returncode == 0, made.stderr
    members = [start("--slice", "team") for _ in range(4)]
    code = LOOP.replace("process_numbered", "slice_named").replace(
        'print("ready", flush=True)', PARTLY + ("" if step is None else CUT.replace("STEP", str(step)))
    )
    failed = subprocess.run([sys.executable, "-c", code, "team"], env=host.environment, capture_output=True, text=True)
    if step is None:
        assert "does not bring process" in failed.stderr and "CUDA_ERROR_NOT_SUPPORTED" in failed.stderr
    else:
        assert failed.returncode == -signal.SIGKILL, failed.stderr
        assert host.vgpurun("resume", "--driver", "sim", "--slice", "team").returncode == 0
    assert [each.asks("check") for each in members] == ["right 4"] * 4
    assert {each.asks("uuid") for each in members} <= set(host.uuids)
    assert len({each.asks("uuid") for each in members}) == 1
    assert sorted(host.used_mib()) == [0, 4 * HELD_MIB]
