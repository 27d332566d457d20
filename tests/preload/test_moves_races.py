"""Moves beside other moves, and beside programs that stop or end meanwhile."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import CHECKOUT
from support.suspension import Host, Program
from vgpurun.limits import limits_file, usage_file

STARTERS = CHECKOUT / "tests" / "sim" / "programs" / "starters.py"
LIMITS = ("--mem", "1500m", "--gpus", "device=0")
HELD_MIB = 100 + 4 + 2 + 6 + 1000


def reserved_mib(host: Host) -> list[int]:
    shown = json.loads(host.vgpurun("free", "--driver", "sim", "--format", "json").stdout)
    return [each["memory_reserved_bytes"] >> 20 for each in shown["gpus"]]


def has_both(program: Program) -> bool:
    """Whether it has the GPU that it leaves and the one that it comes to: looked at in no time, for it soon has not."""
    return len(limits_file.read_limits(program.folder / "etc" / "limits") or []) == 2


def phase_of(program: Program) -> str:
    record = program.folder / "suspension"
    return json.loads(record.read_text())["phase"] if record.exists() else ""


@pytest.fixture
def host(host: Host) -> Host:
    """A host with four GPUs."""
    host.uuids += [f"GPU-{os.getpid():08x}-{number:04x}-0000-0000-{os.urandom(6).hex()}" for number in (2, 3)]
    host.configure(2048, "")
    return host


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_several_moves_of_one_share_at_once(host: Host, start: Callable[..., Program], rounds: int) -> None:
    """Each finds it where the one before has left it, and it has two GPUs all the time."""
    program = start("--mem", "500m", "--gpus", "device=0,1")
    for _ in range(rounds):
        moves = [
            host.start("move", "--driver", "sim", "--gpus", gpus, "--process", program.pid)
            for gpus in ("1,2", "0,2", "2,3", "0,3")
        ]
        for move in moves:
            _, said = move.communicate(timeout=60)
            assert move.returncode == 0 or "already" in said, said
        assert sorted(reserved_mib(host)) == [0, 0, 500, 500]
        assert program.asks("check") == "right 4"


def test_a_move_after_one_that_was_cut_off(host: Host, start: Callable[..., Program]) -> None:
    """The interrupted move is finished first: until then both GPUs are reserved, and the share seems to have two."""
    program = start(*LIMITS)
    program.tell("start 1000")
    assert program.hears() == "started"
    cut = host.start("move", "--driver", "sim", "--gpus", "1", "--process", program.pid)
    while not has_both(program):
        assert cut.poll() is None
        time.sleep(0.005)
    cut.kill()
    cut.communicate()
    assert reserved_mib(host) == [1500, 1500, 0, 0]
    assert program.move("2").returncode == 0
    assert reserved_mib(host) == [0, 0, 1500, 0]
    assert program.asks("check") == "right 4"


def test_a_program_that_ends_meanwhile(host: Host, start: Callable[..., Program]) -> None:
    program = start(*LIMITS)
    program.tell("start 1000")
    assert program.hears() == "started"
    move = host.start("move", "--driver", "sim", "--gpus", "1", "--process", program.pid)
    while not has_both(program):
        assert move.poll() is None
        time.sleep(0.005)
    os.kill(program.child(), signal.SIGKILL)
    _, said = move.communicate(timeout=60)
    # The move may come to the last of its steps before the state folder is gone.
    assert move.returncode == 0 or f"process {program.pid} has ended" in said, said
    program.process.wait(30)
    assert reserved_mib(host) == [0, 0, 0, 0]


@pytest.mark.parametrize("moves", [6, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_programs_that_start_all_the_time(host: Host, moves: int) -> None:
    """Whichever moment of its start the move falls into, each is on the share's GPU when it is over."""
    host.configure(2048, "start_ms: 600\n")  # longer than a call is given to notice the move
    starters = host.start(
        "local",
        "--driver",
        "sim",
        "--mem",
        "1000m",
        "--gpus",
        "device=0",
        "--",
        sys.executable,
        str(STARTERS),
        "4",
        "1000",
    )
    try:
        assert starters.stdout.readline() == "right\n"
        for number in range(moves):
            gpu = (number + 1) % 2
            move = ("move", "--driver", "sim", "--gpus", str(gpu), "--process", str(starters.pid))
            while "has ended on its way" in (done := host.vgpurun(*move)).stderr:
                pass  # all that there were have, and it is moved with those that have started since
            assert done.returncode == 0, done.stderr
            for _ in range(5):
                assert host.used_mib()[1 - gpu] == 0
    finally:
        os.kill(starters.pid, signal.SIGTERM)
        said, errors = starters.communicate(timeout=30)
    assert set(said.splitlines()) == {"right"}, (said, errors)
    assert said.count("right") > 4


def test_a_program_that_is_stopped_as_it_starts(host: Host) -> None:
    """The program could find the GPU that the share had: the share stays until it has started."""
    host.configure(2048, "start_ms: 3000\n")
    starter = host.start(
        "local", "--driver", "sim", "--mem", "1000m", "--gpus", "device=0", "--",
        sys.executable, "-c", "from cuda_driver import Driver; d = Driver(); print('now', flush=True); d.start(0)\n"
        "input(); print(d.device_uuid(), d.mem_alloc(1 << 20) > 0, flush=True)",
    )  # fmt: skip
    try:
        assert starter.stdout.readline() == "now\n"
        child = int(Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()[0])
        (folder,) = (host.folder / "state" / "containers").iterdir()
        while not usage_file.is_starting(folder / "run" / "usage"):
            time.sleep(0.001)
        os.kill(child, signal.SIGSTOP)
        move = ("move", "--driver", "sim", "--gpus", "1", "--process", str(starter.pid))
        refused = host.vgpurun(*move, "--timeout", "1s")
        assert refused.returncode == 125 and "has been starting CUDA for 1 s" in refused.stderr, refused.stderr
        assert reserved_mib(host) == [1000, 0, 0, 0]
        os.kill(child, signal.SIGCONT)
        assert host.vgpurun(*move).returncode == 0
    finally:
        said, _ = starter.communicate("\n", timeout=30)
    assert said == f"{host.uuids[1]} True\n"


@pytest.mark.parametrize(
    ("phase", "state", "after"), [("suspending", "LOCKED", "CHECKPOINTED"), ("moving", "CHECKPOINTED", "LOCKED")]
)
def test_a_program_that_is_stopped_meanwhile(
    host: Host, start: Callable[..., Program], phase: str, state: str, after: str
) -> None:
    """The move gives up on it; when it goes on it is on its own GPU, wherever the driver has brought it."""
    slow = host.folder / "sim.yaml"
    slow.write_text(slow.read_text().replace("checkpoint_mib_per_ms: 100", "checkpoint_mib_per_ms: 1"))
    program = start(*LIMITS)
    assert program.asks("take 1000") == "taken"
    move = host.start("move", "--driver", "sim", "--gpus", "1", "--process", program.pid)
    while (phase_of(program), program.state()) != (phase, state):
        assert move.poll() is None
        time.sleep(0.01)
    child = program.child()
    os.kill(child, signal.SIGSTOP)
    _, said = move.communicate(timeout=60)  # the driver would be waited for ten minutes
    assert move.returncode == 125 and f"process {child} of process {program.pid} is stopped" in said
    assert reserved_mib(host) == [1500, 0, 0, 0]
    os.kill(child, signal.SIGCONT)
    while program.state() != after:  # the driver goes on with what it was at
        time.sleep(0.05)
    assert program.resume().returncode == 0
    assert program.state() == "RUNNING"
    assert program.asks("uuid") == host.uuids[0]
    assert host.used_mib() == [HELD_MIB, 0, 0, 0]
    assert program.asks("check") == "right 4"


@pytest.mark.parametrize("verb", ["suspend", "move"])
def test_a_program_that_is_killed_as_it_is_copied(host: Host, start: Callable[..., Program], verb: str) -> None:
    """The kernel kills what has too little memory: the move says so, and leaves nothing of it."""
    slow = host.folder / "sim.yaml"
    slow.write_text(slow.read_text().replace("checkpoint_mib_per_ms: 100", "checkpoint_mib_per_ms: 1"))
    program = start(*LIMITS)
    assert program.asks("take 1000") == "taken"
    gpus = ("--gpus", "1") if verb == "move" else ()
    acting = host.start(verb, "--driver", "sim", *gpus, "--process", program.pid)
    while (phase_of(program), program.state()) != ("suspending", "LOCKED"):
        assert acting.poll() is None
        time.sleep(0.01)
    time.sleep(0.1)
    program.kill()
    out, said = acting.communicate(timeout=60)
    assert (acting.returncode, out) == (125, ""), said
    assert "has ended" in said and len(said.splitlines()) == 1, said
    assert reserved_mib(host) == [0, 0, 0, 0]
    assert host.used_mib() == [0, 0, 0, 0]
