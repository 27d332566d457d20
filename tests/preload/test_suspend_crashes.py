"""Suspensions under kill -9 of everybody: no process lost or left locked, no byte wrong, nothing reserved twice."""

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
from typing import Any

import pytest

from support import ROUNDS
from support.programs import text_of
from support.suspension import SIM, Host, Program, rounds_under_fire
from vgpurun.host import checkpoint_calls, checkpoints, visible
from vgpurun.limits import limits_file
from vgpurun.suspend import record, resuming, targets, transition

pytestmark = pytest.mark.slow


def loop() -> None:
    """Suspend a process and bring it back, again and again."""
    gpus, target = visible.visible_gpus(True), targets.process_numbered(sys.argv[1])
    print("ready", flush=True)
    while True:
        with checkpoints.Checkpoints(visible.libcuda(True)) as driver:
            transition.suspend(target, gpus, driver, transition.Wishes(is_held=True))
            resuming.bring_back(target, gpus, driver, None)
        print("round", flush=True)


def check(host: Host, program: Program) -> None:
    """A transition that was cut off is finished, one way or the other; and then the program goes on with every byte."""
    assert program.resume().returncode == 0
    assert program.state() == "RUNNING"
    assert not (program.folder / "suspension").exists()
    assert program.asks("check").startswith("right")


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_helper_says_nothing_when_its_master_is_killed(host: Host, has_begun: bool) -> None:
    read, write = os.pipe()
    if not has_begun:
        os.close(read)
    helper = subprocess.Popen(
        [sys.executable, "-I", "-S", checkpoint_calls.__file__, SIM / "libcuda.so.1"], env=host.environment,
        stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    if has_begun:
        assert os.read(read, 100) == b"ready\n"
        os.close(read)
    assert helper.communicate("state 1\n", timeout=60)[1] == ""
    assert helper.returncode == 0


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_many_times(host: Host, start: Callable[..., Program]) -> None:
    """Killed at any moment: also between the steps below, and within a call of the driver."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    assert rounds_under_fire(program, text_of(loop), ROUNDS, check) >= ROUNDS


def test_the_program_is_killed(host: Host, start: Callable[..., Program]) -> None:
    chance = random.Random(os.getpid())
    for _ in range(4):
        program = start("--mem", "1500m", "--gpus", "device=0")
        suspending = host.start("suspend", "--driver", "sim", "--process", program.pid)
        time.sleep(chance.uniform(0.3, 1.2))
        program.kill()
        suspending.communicate(timeout=60)
        assert host.used_mib() == [0, 0]
    assert start("--mem", "2g", "--gpus", "device=0").asks("check") == "right 4"


def test_each_moment_of_a_suspension(host: Host, start: Callable[..., Program]) -> None:
    """Killed after each of its steps in turn, as the record and the limits file have it then."""

    def cut_after(steps: int) -> Callable[[], None]:
        def cut_loop() -> None:
            count = 0

            def cut(function: Callable[..., Any]) -> Callable[..., Any]:
                def cut_off(*arguments: Any) -> Any:
                    nonlocal count
                    count += 1
                    result = function(*arguments)
                    if count > steps:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return result

                return cut_off

            record.write, record.forget = cut(record.write), cut(record.forget)
            limits_file.set_suspended = cut(limits_file.set_suspended)
            loop()

        return cut_loop

    program = start("--mem", "1500m", "--gpus", "device=0")
    seen = set()
    for step in range(12):
        command = [sys.executable, "-c", text_of(cut_after(step)), program.pid]
        cut = subprocess.run(command, env=host.environment, capture_output=True)
        assert cut.returncode == -signal.SIGKILL
        recorded = program.folder / "suspension"
        seen.add(json.loads(recorded.read_text())["phase"] if recorded.exists() else "none")
        check(host, program)
    assert seen == {"suspending", "suspended", "resuming", "none"}
    full = host.vgpurun("local", "--driver", "sim", "--mem", "1g", "--gpus", "device=0", "--", "true")
    assert full.returncode == 125, "all of it is reserved again"


@pytest.mark.parametrize("write", [2, 4])
def test_a_full_disk(host: Host, start: Callable[..., Program], write: int) -> None:
    """Met before the first process is locked, and when all are away: they run on."""

    def loop_on_a_full_disk() -> None:
        writes, write_well = iter(range(1, 10)), record.write

        def write_or_not(*arguments: Any) -> None:
            if next(writes) == write:
                raise OSError(28, "No space left on device")
            write_well(*arguments)

        record.write = write_or_not
        loop()

    program = start("--mem", "1500m", "--gpus", "device=0")
    command = [sys.executable, "-c", text_of(loop_on_a_full_disk), program.pid]
    failed = subprocess.run(command, env=host.environment, stderr=subprocess.PIPE)
    assert b"No space left on device" in failed.stderr
    assert not (program.folder / "suspension").exists()
    assert program.asks("check") == "right 4"


def test_of_sixteen_processes_one_refuses(host: Host, start: Callable[..., Program]) -> None:
    """The others, which were locked or away by then, run on."""
    script = host.folder / "sixteen"
    patterns = str(Path(__file__).parents[1] / "sim" / "programs" / "patterns.py")

    def sixteen() -> None:
        ran = []
        for number in range(16):
            variables = {**os.environ, **({"VGPUSIM_CHECKPOINT": "refuse"} if number == 11 else {})}
            command, pipe = [sys.executable, "-u", patterns], subprocess.PIPE
            ran.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables))

        def answer(each: subprocess.Popen[str], line: str) -> str:
            each.stdin.write(line)
            each.stdin.flush()
            return each.stdout.readline().strip()

        assert all(each.stdout and each.stdout.readline() == "ready\n" for each in ran)
        print("ready", flush=True)
        for line in sys.stdin:
            print(sorted({answer(each, line) for each in ran}), flush=True)

    script.write_text(text_of(sixteen))
    launched = subprocess.Popen(
        [sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "2g", "--gpus", "device=0", "--",
         sys.executable, str(script)],
        env=host.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert launched.stdout.readline() == "ready\n"
    try:
        held = host.used_mib()
        done = host.vgpurun("suspend", "--driver", "sim", "--process", str(launched.pid))
        assert done.returncode == 125 and "cannot checkpoint process" in done.stderr, done.stderr
        assert host.used_mib() == held
        launched.stdin.write("check\n")
        launched.stdin.flush()
        assert launched.stdout.readline() == "['right 4']\n"
    finally:
        launched.stdin.close()
        launched.wait(30)
        launched.stdout.close()
