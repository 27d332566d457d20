"""Programs that are suspended and resumed by the command line, on simulated GPUs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import assert_refused, unavailable
from support.suspension import Host, Program, programs

NOBODY = 65534


def test_out_and_back(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    held_mib = 100 + 4 + 2 + 6
    assert host.used_mib() == [held_mib, 0]
    done = program.suspend()
    assert (done.returncode, done.stdout) == (0, f"process {program.pid}: {held_mib} MiB in host memory\n"), done.stderr
    assert host.used_mib() == [0, 0]
    program.tell("check")
    assert program.is_silent(0.3)
    back = program.resume()
    assert (back.returncode, back.stdout) == (0, f"process {program.pid}\n"), back.stderr
    assert program.hears() == "right 4"
    assert host.used_mib() == [held_mib, 0]
    assert program.asks("alloc 50") == "held"
    assert program.asks("check") == "right 5"
    again = program.resume()
    assert (again.returncode, again.stdout) == (0, f"process {program.pid}: not suspended\n")


def test_admission_has_its_memory_meanwhile(host: Host, start: Callable[..., Program]) -> None:
    first = start("--mem", "1500m", "--sm", "80", "--gpus", "device=0")
    full = host.vgpurun("local", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0", "--", "true")
    assert full.returncode == 125 and "548 MiB is free" in full.stderr
    assert first.suspend().returncode == 0
    second = start("--mem", "1500m", "--sm", "80", "--gpus", "device=0")
    assert_refused(first.resume(), "548 MiB is free")
    assert host.used_mib()[0] == 112
    second.end()
    assert first.resume().returncode == 0
    assert first.asks("check") == "right 4"
    full = host.vgpurun("local", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0", "--", "true")
    assert full.returncode == 125


def test_it_waits_for_room(host: Host, start: Callable[..., Program]) -> None:
    first = start("--mem", "1500m", "--gpus", "device=0")
    assert first.suspend().returncode == 0
    second = start("--mem", "1500m", "--gpus", "device=0")
    waiting = host.start("resume", "--driver", "sim", "--wait=60s", "--process", first.pid)
    assert "in place 1 of the queue" in waiting.stderr.readline()
    second.end()
    assert waiting.communicate(timeout=60)[0] == f"process {first.pid}\n"
    assert first.asks("check") == "right 4"


def test_memory_of_others_is_never_restored_into(host: Host, start: Callable[..., Program]) -> None:
    """The driver would never bring it back then."""
    first = start("--mem", "1500m", "--gpus", "device=0")
    assert first.asks("take 1200") == "taken"
    assert first.suspend().returncode == 0
    other = start("--gpus", "device=0", "--overcommit")  # without a limit: nobody knows what it takes
    assert other.asks("take 1000") == "taken"
    assert_refused(first.resume("--overcommit"), "is not in use there")
    other.end()
    assert first.resume().returncode == 0
    assert first.asks("check") == "right 4"


@pytest.mark.parametrize(
    ("asked", "said", "message"),
    [
        ("managed", "managed", "cannot checkpoint process"),
        ("share", "shared", "shares GPU memory with others (CUDA IPC)"),
    ],
)
def test_what_cannot_come_back_runs_on(start: Callable[..., Program], asked: str, said: str, message: str) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.asks(asked) == said
    refused = program.suspend()
    assert (refused.returncode, message in refused.stderr) == (125, True), refused.stderr
    assert program.asks("check") == "right 4"
    assert not (program.folder / "suspension").exists()


def test_work_that_does_not_end_runs_on(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.asks("begin") == "begun"
    assert_refused(program.suspend("--timeout", "100ms"), "its work on the GPU did not end in time")
    assert program.asks("release") == "released"
    assert program.asks("check") == "right 4"


def test_an_old_driver(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    config = host.folder / "sim.yaml"
    config.write_text("driver_version: 550.1\n" + config.read_text())
    assert_refused(program.suspend(), "older than 570")
    assert program.asks("check") == "right 4"


def test_a_program_that_ends_meanwhile(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    folder = program.folder
    assert program.suspend().returncode == 0
    assert json.loads((folder / "suspension").read_text())["phase"] == "suspended"
    program.kill()
    assert host.used_mib() == [0, 0]
    assert start("--mem", "2g", "--gpus", "device=0").asks("check") == "right 4"
    assert not folder.exists()


def test_a_slice_with_all_that_has_joined_it(host: Host, start: Callable[..., Program]) -> None:
    made = host.vgpurun("slice", "create", "team", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0")
    assert made.returncode == 0, made.stderr
    members = [start("--slice", "team") for _ in range(3)]
    assert_refused(members[0].suspend(), "name that, as a whole: --slice team")
    done = host.vgpurun("suspend", "--driver", "sim", "--slice", "team")
    assert (done.returncode, done.stdout) == (0, "slice team: 336 MiB in host memory\n"), done.stderr
    assert host.used_mib() == [0, 0]
    other = start("--mem", "1g", "--gpus", "device=0")
    assert_refused(host.vgpurun("resume", "--driver", "sim", "--slice", "team"), "1 GiB is free")
    other.end()
    assert host.vgpurun("resume", "--driver", "sim", "--slice", "team").returncode == 0
    assert [each.asks("check") for each in members] == ["right 4"] * 3


def test_a_program_that_starts_meanwhile(host: Host, start: Callable[..., Program]) -> None:
    """The program waits at its first call, as those that were there wait."""
    host.vgpurun("slice", "create", "team", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0")
    start("--slice", "team")
    assert host.vgpurun("suspend", "--driver", "sim", "--slice", "team").returncode == 0
    resuming = threading.Timer(1.5, lambda: host.vgpurun("resume", "--driver", "sim", "--slice", "team"))
    resuming.start()
    began_s = time.monotonic()
    assert start("--slice", "team").asks("check") == "right 4"
    assert time.monotonic() - began_s > 1.5
    resuming.join()


def test_a_record_that_names_somebody_else_s_process(start: Callable[..., Program]) -> None:
    """A user may write into the own folder what the user likes, and root finishes it."""
    own, other = (start("--mem", "500m", "--gpus", "device=0") for _ in range(2))
    assert other.suspend("--hold").returncode == 0
    record = json.loads((other.folder / "suspension").read_text())
    (own.folder / "suspension").write_text(json.dumps({**record, "phase": "resuming"}))
    assert own.resume().returncode == 0
    other.tell("check")
    assert other.is_silent(1)
    assert other.resume().returncode == 0
    assert other.hears() == "right 4"
    assert own.asks("check") == "right 4"


def test_a_damaged_record(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.suspend("--hold").returncode == 0
    (program.folder / "suspension").write_text('{"phase": ')
    assert program.resume().returncode == 0
    assert program.asks("check") == "right 4"
    assert host.used_mib() == [112, 0]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c(host: Host, start: Callable[..., Program], ending: signal.Signals) -> None:
    """Ctrl-C comes while work on the GPU is waited for, and to all processes of the terminal's foreground."""
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.asks("start 8000") == "started"
    suspending = host.start("suspend", "--driver", "sim", "--process", program.pid, is_group=True)
    while not (program.folder / "suspension").exists():
        time.sleep(0.02)
    time.sleep(0.5)
    os.killpg(suspending.pid, ending)
    _, said = suspending.communicate(timeout=60)
    expected = f"vgpurun: interrupted: process {program.pid} runs on GPU 0\n"
    assert (suspending.returncode, said) == (128 + ending, expected)
    assert not (program.folder / "suspension").exists()
    assert program.asks("check") == "right 4"


@pytest.mark.slow
def test_processes_of_another_user(built_library: Path) -> None:
    """A user of the engine owns the files of a container but not its programs, which are root's."""
    if os.geteuid():
        unavailable("programs of two users take root")
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder, programs(host := Host(Path(folder))) as running:
        host.folder.chmod(0o755)
        program = running["root's"] = Program(host, "--mem", "1g", "--gpus", "device=0")
        for each in (*program.folder.rglob("*"), *host.folder.glob("sim*")):
            os.chown(each, NOBODY, NOBODY)
        held = host.used_mib()
        words = ("--driver", "sim", "--process", program.pid)
        refused = host.vgpurun("suspend", *words, user=NOBODY)
        assert refused.returncode == 125 and "another user's" in refused.stderr and "use sudo" in refused.stderr, (
            refused.stderr
        )
        assert program.asks("check") == "right 4" and host.used_mib() == held
        assert program.suspend("--hold").returncode == 0
        refused = host.vgpurun("resume", *words, user=NOBODY)
        assert refused.returncode == 125 and "another user's" in refused.stderr and "use sudo" in refused.stderr, (
            refused.stderr
        )
        assert program.resume().returncode == 0
        assert program.asks("check") == "right 4" and host.used_mib() == held


def test_a_suspended_slice_is_not_removed(host: Host, start: Callable[..., Program]) -> None:
    host.vgpurun("slice", "create", "team", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0")
    member = start("--slice", "team")
    assert host.vgpurun("suspend", "--driver", "sim", "--hold", "--slice", "team").returncode == 0
    refused = host.vgpurun("slice", "rm", "--driver", "sim", "--force", "team")
    assert (
        refused.returncode == 125
        and "is suspended or waits for its turn, and what is in there would be lost" in refused.stderr
    )
    assert host.vgpurun("resume", "--driver", "sim", "--slice", "team").returncode == 0
    assert member.asks("check") == "right 4"
    assert host.vgpurun("slice", "rm", "--driver", "sim", "--force", "team").returncode == 0


def test_a_part_that_is_suspended_by_itself(host: Host, start: Callable[..., Program]) -> None:
    """The part stays away when the whole comes back, and takes no room of its own to come back itself."""
    within = ("--", sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "1g")
    whole = start("--mem", "1800m", "--gpus", "device=0", *within)
    part = ("--driver", "sim", "--process", str(whole.child()))
    assert host.vgpurun("suspend", "--hold", *part).returncode == 0
    suspended = whole.suspend("--hold")
    assert suspended.returncode == 0, suspended.stderr
    assert_refused(host.vgpurun("resume", *part), "is part of a suspended share")
    assert whole.resume().returncode == 0
    assert host.used_mib() == [0, 0]
    whole.tell("check")
    assert whole.is_silent(0.5)
    assert host.vgpurun("resume", *part).returncode == 0
    assert whole.hears() == "right 4"


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_a_part_and_its_whole_at_once(host: Host, start: Callable[..., Program], rounds: int) -> None:
    """Whichever comes first: each ends as its own record says, and no byte is lost."""
    within = ("--", sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "1g")
    whole = start("--mem", "1800m", "--gpus", "device=0", *within)
    targets = {
        name: ("--driver", "sim", "--process", pid)
        for name, pid in (("whole", whole.pid), ("part", str(whole.child())))
    }
    for first, second in (("whole", "part"), ("part", "whole")) * rounds:
        running = [host.start("suspend", "--hold", *targets[name]) for name in (first, second)]
        ends = [(process.communicate(timeout=60)[1], process.returncode) for process in running]
        for said, exit_code in ends:
            assert exit_code == 0 or "is part of a suspended share" in said, ends
        assert host.used_mib() == [0, 0]
        coming = [host.start("resume", *targets[name]) for name in (first, second)]
        for process in coming:
            process.communicate(timeout=60)
        for name in ("whole", "part"):
            assert host.vgpurun("resume", *targets[name]).returncode == 0
        assert whole.asks("check") == "right 4"


def test_a_stopped_process(start: Callable[..., Program]) -> None:
    """The driver would wait for it without end."""
    program = start("--mem", "1g", "--gpus", "device=0")
    os.kill(program.child(), signal.SIGSTOP)
    assert_refused(program.suspend(), "is stopped; let it go on first")
    os.kill(program.child(), signal.SIGCONT)
    assert program.asks("check") == "right 4"


def test_names_that_there_are_not(host: Host) -> None:
    for words, message in (
        (["suspend"], "name a container"),
        (["suspend", "--process", "1"], "process 1 was not started by vgpurun local"),
        (["resume", "--slice", "x"], "there is no slice 'x'; see them"),
        (["suspend", "--timeout", "soon", "--process", "1"], "--timeout 'soon' is not a time"),
    ):
        done = host.vgpurun(*words, "--driver", "sim")
        assert (done.returncode, message in done.stderr) == (125, True), done.stderr
