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

import pytest

from support import ROUNDS
from support.suspension import SIM, Host, Program, rounds_under_fire
from vgpurun.host import checkpoint_calls

pytestmark = pytest.mark.slow
LOOP = """
import random, sys, time
from pathlib import Path
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.suspend.resuming import bring_back
from vgpurun.suspend.targets import process_numbered
from vgpurun.suspend.transition import Wishes, read, suspend
gpus, target = visible_gpus(True), process_numbered(sys.argv[1])
print("ready", flush=True)
while True:
    with Checkpoints(libcuda(True)) as driver:
        suspend(target, gpus, driver, Wishes(is_held=True))
        bring_back(target, gpus, driver, None)
    print("round", flush=True)
"""


def check(host: Host, program: Program) -> None:
    """A transition that was cut off is finished, one way or the other; and then the program goes on with every byte."""
    back = program.resume()
    assert back.returncode == 0, back.stderr
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
    assert rounds_under_fire(program, LOOP, ROUNDS, check) >= ROUNDS


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
    program = start("--mem", "1500m", "--gpus", "device=0")
    seen = set()
    for step in range(12):
        code = LOOP.replace(
            'print("ready", flush=True)',
            f"""
import os, signal
from vgpurun.suspend import record, transition
from vgpurun.limits import limits_file
count = 0
def cut(function):
    def cut_off(*arguments):
        global count
        count += 1
        result = function(*arguments)
        if count > {step}:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return cut_off
record.write, record.forget = cut(record.write), cut(record.forget)
limits_file.set_suspended = cut(limits_file.set_suspended)
""",
        )
        cut = subprocess.run([sys.executable, "-c", code, program.pid], env=host.environment, capture_output=True)
        assert cut.returncode == -signal.SIGKILL
        record = program.folder / "suspension"
        seen.add(json.loads(record.read_text())["phase"] if record.exists() else "none")
        check(host, program)
    assert seen == {"suspending", "suspended", "resuming", "none"}
    full = host.vgpurun("local", "--driver", "sim", "--mem", "1g", "--gpus", "device=0", "--", "true")
    assert full.returncode == 125, "all of it is reserved again"


@pytest.mark.parametrize("write", [2, 4])
def test_a_full_disk(host: Host, start: Callable[..., Program], write: int) -> None:
    """Met before the first process is locked, and when all are away: they run on."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    code = LOOP.replace(
        'print("ready", flush=True)',
        f"""
from vgpurun.suspend import record
writes, write = iter(range(1, 10)), record.write
def write_or_not(*arguments):
    if next(writes) == {write}:
        raise OSError(28, "No space left on device")
    write(*arguments)
record.write = write_or_not
""",
    )
    failed = subprocess.run([sys.executable, "-c", code, program.pid], env=host.environment, stderr=subprocess.PIPE)
    assert b"No space left on device" in failed.stderr
    assert not (program.folder / "suspension").exists()
    assert program.asks("check") == "right 4"


def test_of_sixteen_processes_one_refuses(host: Host, start: Callable[..., Program]) -> None:
    """The others, which were locked or away by then, run on."""
    script = host.folder / "sixteen"
    patterns = Path(__file__).parents[1] / "sim" / "programs" / "patterns.py"
    script.write_text(
        "import subprocess, sys\n"
        f"ran = [subprocess.Popen([sys.executable, '-u', {str(patterns)!r}], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE, text=True, env={**__import__('os').environ, **({'VGPUSIM_CHECKPOINT': 'refuse'} "
        "if number == 11 else {})}) for number in range(16)]\n"
        "def ask(each, line): each.stdin.write(line); each.stdin.flush(); return each.stdout.readline()\n"
        "assert all(each.stdout.readline() == 'ready\\n' for each in ran)\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin: print(sorted({ask(each, line).strip() for each in ran}), flush=True)\n"
    )
    launched = subprocess.Popen(
        [sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "2g", "--gpus", "device=0", "--",
         sys.executable, str(script)],
        env=host.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert launched.stdin
    assert launched.stdout
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
