"""Programs that are suspended and resumed by the command line, on simulated GPUs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.suspension import Host, Program


@pytest.fixture
def host(built_library: Path, tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def start(host: Host) -> Iterator[Callable[..., Program]]:
    started = []

    def start_one(*options: str, **variables: str) -> Program:
        started.append(Program(host, *options, **variables))
        return started[-1]

    yield start_one
    for program in started:
        program.end()


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
    refused = first.resume()
    assert refused.returncode == 125 and "548 MiB is free" in refused.stderr, refused.stderr
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
    assert waiting.stderr
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
    refused = first.resume("--overcommit")
    assert refused.returncode == 125 and "is not in use there" in refused.stderr, refused.stderr
    other.end()
    assert first.resume().returncode == 0
    assert first.asks("check") == "right 4"


def test_what_the_driver_refuses_runs_on(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.asks("share") == "shared"
    refused = program.suspend()
    assert refused.returncode == 125
    assert "cannot checkpoint process" in refused.stderr and "CUDA IPC" in refused.stderr
    assert program.asks("check") == "right 4"
    assert not (program.folder / "suspension").exists()


def test_work_that_does_not_end_runs_on(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.asks("start 3000") == "started"
    refused = program.suspend("--timeout", "100ms")
    assert refused.returncode == 125 and "its work on the GPU did not end in time" in refused.stderr
    assert program.asks("check") == "right 4"


def test_an_old_driver(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    config = host.folder / "sim.yaml"
    config.write_text("driver_version: 550.1\n" + config.read_text())
    refused = program.suspend()
    assert refused.returncode == 125 and "older than 570" in refused.stderr
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
    alone = members[0].suspend()
    assert alone.returncode == 125 and "is suspended as a whole: --slice team" in alone.stderr
    done = host.vgpurun("suspend", "--driver", "sim", "--slice", "team")
    assert (done.returncode, done.stdout) == (0, "slice team: 336 MiB in host memory\n"), done.stderr
    assert host.used_mib() == [0, 0]
    other = start("--mem", "1g", "--gpus", "device=0")
    refused = host.vgpurun("resume", "--driver", "sim", "--slice", "team")
    assert refused.returncode == 125 and "1 GiB is free" in refused.stderr, refused.stderr
    other.end()
    assert host.vgpurun("resume", "--driver", "sim", "--slice", "team").returncode == 0
    assert [each.asks("check") for each in members] == ["right 4"] * 3


def test_a_program_that_starts_meanwhile(host: Host, start: Callable[..., Program]) -> None:
    """It waits at its first call, as those that were there wait."""
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


def test_a_stopped_process(start: Callable[..., Program]) -> None:
    """The driver would wait for it without end."""
    program = start("--mem", "1g", "--gpus", "device=0")
    os.kill(program.child(), signal.SIGSTOP)
    refused = program.suspend()
    assert refused.returncode == 125 and "is stopped; let it go on first" in refused.stderr
    os.kill(program.child(), signal.SIGCONT)
    assert program.asks("check") == "right 4"


def test_names_that_there_are_not(host: Host) -> None:
    for words, message in (
        (["suspend"], "name a container"),
        (["suspend", "--process", "1"], "process 1 was not started by vgpurun local"),
        (["resume", "--slice", "x"], "there is no slice x"),
        (["suspend", "--timeout", "soon", "--process", "1"], "--timeout 'soon' is not a time"),
    ):
        done = host.vgpurun(*words, "--driver", "sim")
        assert (done.returncode, message in done.stderr) == (125, True), done.stderr
