"""Users beside each other without containers: in a slice of theirs, and as they see each other's processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import CHECKOUT, python_of, unavailable
from support.lock_holder import held_by_process
from support.suspension import PATTERNS, SIM, Guard, Host, Program
from vgpurun.admission.lock import shared_folder
from vgpurun.limits.usage_file import read_usage
from vgpurun.storage import state
from vgpurun.util.process_identity import identify
from vgpurun.util.users import current_user

MEMBER, STRANGER = 61301, 61302
PYTHON = "/usr/bin/python3"  # the tests' own may lie in root's home


@pytest.fixture
def shared(built_library: Path) -> Iterator[Host]:
    """A host whose state, and GPUs, are all users'."""
    if os.geteuid() or not Path(PYTHON).exists():
        unavailable(f"programs of two users take root, and {PYTHON}")
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder:
        host = Host(Path(folder))
        host.folder.chmod(0o1777)
        created = host.vgpurun(
            "slice", "create", "team", "--driver", "sim", "--mem", "1g", "--gpus", "device=0", "--users", str(MEMBER)
        )
        assert created.returncode == 0, created.stderr
        (host.folder / "state" / "containers").mkdir(exist_ok=True)
        (host.folder / "state" / "containers").chmod(0o1777)
        yield host
        host.end()


@contextmanager
def program_of(host: Host, user: int) -> Iterator[subprocess.Popen[str]]:
    words = ("-m", "vgpurun", "local", "--driver", "sim", "--slice", "team", "--")
    with python_of(user) as python:
        checkout = Path(python[1].removeprefix("--chdir="))
        environment = host.environment | {"HOME": str(host.folder), "PYTHONPATH": str(checkout / "tests")}
        command = [*python, *words, PYTHON, "-u", str(checkout / PATTERNS.relative_to(CHECKOUT))]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.stdin.close()
                process.wait(20)


@pytest.mark.slow
def test_its_users_count_together_and_others_are_refused(shared: Host) -> None:
    for each in shared.folder.glob("sim*"):
        each.chmod(0o666)
    roots = Program(shared, "--slice", "team")
    with program_of(shared, MEMBER) as theirs:
        said = theirs.stdout.readline()
        assert said == "ready\n", theirs.stderr.read()
        (reading,) = read_usage(shared.folder / "state/slices/team/run/usage", shared.uuids[:1]) or ()
        assert reading.processes == 2
    with program_of(shared, STRANGER) as refused:
        assert refused.stderr and "is not for user 61302" in refused.stderr.read()
    roots.end()


@pytest.mark.slow
def test_another_user_sees_what_programs_hold_and_not_what_they_count(shared: Host) -> None:
    """The driver tells it to all. Refusals and times are in the usage file, which others could lock."""
    program = Program(shared, "--mem", "1g", "--gpus", "device=1")
    member = Program(shared, "--slice", "team")
    for each in shared.folder.glob("sim*"):
        each.chmod(0o666)
    shown = {
        user: shared.vgpurun("smi", "--driver", "sim", user=user, HOME=str(shared.folder)) for user in (None, STRANGER)
    }
    lines = {user: smi.stdout.splitlines() for user, smi in shown.items()}
    for words in (f"process {program.pid} ", "slice team ", f"process {member.pid} "):
        mine, theirs = (next(line for line in lines[user] if words in line) for user in (None, STRANGER))
        assert "112 MiB" in mine and mine.split("112 MiB")[0] == theirs.split("112 MiB")[0]
    for each in (program, member):
        each.end()


def test_verify_says_why_it_cannot_compare_the_time(shared: Host) -> None:
    """Root alone has the GPU's records of all processes; the rest is tried all the same."""
    as_stranger = ("setpriv", f"--reuid={STRANGER}", "--clear-groups", "sh", "-c", '"$0" --version', sys.executable)
    if subprocess.run(as_stranger, capture_output=True).returncode:
        unavailable(f"programs of other users cannot start {Path(sys.executable).resolve()}")
    seen = shared.vgpurun(
        "verify", "--driver", "sim", "--sm", "50", "--seconds", "0.5", user=STRANGER, HOME=str(shared.folder)
    )
    lines = [line for line in seen.stdout.splitlines() if "GPU time" in line]
    assert len(lines) == 1 and lines[0].endswith("not compared: it takes root"), seen
    assert "compute: graphs" in seen.stdout


def waiting(host: Host) -> list[tuple[str, list[str]]]:
    """Return who waits for GPUs of this host, and for which, as root sees it."""
    found = json.loads(host.vgpurun("queue", "--driver", "sim", "--format", "json").stdout)
    return [(each["user"], each["gpus"]) for each in found if {*each["gpus"]} <= {"0", "1"}]


@pytest.mark.slow
def test_all_users_wait_in_one_queue_until_they_end(shared: Host) -> None:
    """A waiting launch is known by its process, not by a lock on its ticket, which any user can take."""
    holder = Program(shared, "--mem", "1500m", "--gpus", "device=1")
    for each in shared.folder.glob("sim*"):
        each.chmod(0o666)
    launch = (
        "-m",
        "vgpurun",
        "local",
        "--driver",
        "sim",
        "--mem",
        "1500m",
        "--gpus",
        "device=1",
        "--wait",
        "--",
        "true",
    )
    with python_of(STRANGER) as python:
        environment = shared.environment | {"HOME": str(shared.folder)}
        theirs = subprocess.Popen([*python, *launch], env=environment, stderr=subprocess.PIPE, text=True)
        mine = None
        try:
            assert theirs.stderr and "place 1" in theirs.stderr.readline()
            mine = shared.start(*launch[2:])
            assert mine.stderr and "place 2" in mine.stderr.readline()
            assert waiting(shared) == [(str(STRANGER), ["1"]), (current_user(), ["1"])]
            tickets = [path for path in shared_folder().iterdir() if path.name.startswith("vgpurun-wait-")]
            with ExitStack() as locked:
                for path in tickets:
                    locked.enter_context(held_by_process(path))
                theirs.kill()
                theirs.wait()
                assert waiting(shared) == [(current_user(), ["1"])]
                assert "place 1" in mine.stderr.readline()
                holder.end()
                assert mine.wait(60) == 0
        finally:
            for process in filter(None, (theirs, mine)):
                process.kill()
                process.communicate()
    assert waiting(shared) == []


@contextmanager
def stranger_with(host: Host, limits: Path) -> Iterator[int]:
    """Yield a process of another user that uses the GPUs, without limits, and has mapped somebody's."""
    mapping = (
        f"import mmap\nfile = open({str(limits)!r}, 'rb')\nkept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    )
    with python_of(STRANGER) as python:
        checkout = Path(python[1].removeprefix("--chdir="))
        program = mapping + (checkout / PATTERNS.relative_to(CHECKOUT)).read_text()
        simulated = checkout / SIM.relative_to(CHECKOUT)
        environment = host.environment | {"LD_LIBRARY_PATH": str(simulated), "PYTHONPATH": str(checkout / "tests")}
        command = [*python[:-1], PYTHON, "-u", "-c", program]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield process.pid
            process.kill()


@pytest.mark.slow
def test_a_stranger_that_maps_the_limits_is_neither_suspended_nor_in_the_way(shared: Host) -> None:
    program = Program(shared, "--mem", "600m", "--gpus", "device=0")
    for each in shared.folder.glob("sim*"):
        each.chmod(0o666)
    with stranger_with(shared, program.folder / "etc" / "limits") as stranger:
        assert program.suspend("--hold").returncode == 0
        assert shared.state_of(stranger) == "RUNNING" and program.state() != "RUNNING"
        assert program.resume().returncode == 0
        assert program.move("1").returncode == 0
        assert shared.state_of(stranger) == "RUNNING" and program.asks("check") == "right 4"
    program.end()


def test_an_owner_who_holds_his_own_lock_holds_up_nobody_elses_programs(host: Host, guard: Guard) -> None:
    """The guard looks after those of all users, in one thread."""
    mine, his = (Program(host, "--mem", "600m", "--gpus", f"device={gpu}") for gpu in (0, 1))
    for each in (mine, his):
        assert each.suspend().returncode == 0
    with (his.folder / "changing").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        his.tell("check")
        time.sleep(1)
        began = time.monotonic()
        assert mine.asks("check") == "right 4"
        assert time.monotonic() - began < 30, guard.said.read_text()
        assert his.is_silent(0.5)
    assert his.hears() == "right 4"
    for each in (mine, his):
        each.end()


def alive_to(user: int, folder: Path) -> bool:
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setresuid(user, user, user)
        os._exit(state.is_alive(folder))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_others_see_a_process_that_outlives_its_command(shared: Host) -> None:
    """And they see that it has ended, although nobody has removed its folder by then."""
    words = ("local", "--driver", "sim", "--mem", "1g", "--gpus", "device=1", "--")
    daemon = shared.vgpurun(*words, "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    pid = int(daemon.stdout)
    (folder,) = (shared.folder / "state" / "containers").iterdir()
    try:
        assert alive_to(STRANGER, folder) and alive_to(0, folder)
    finally:
        os.kill(pid, signal.SIGKILL)
    while identify(pid):
        time.sleep(0.01)
    assert not alive_to(STRANGER, folder) and not alive_to(0, folder)


def test_others_see_a_process_whose_command_was_killed(shared: Host) -> None:
    program = Program(shared, "--mem", "1g", "--gpus", "device=1")
    folder, child = program.folder, program.child()
    program.process.kill()
    program.process.wait()
    assert alive_to(STRANGER, folder)
    os.kill(child, signal.SIGKILL)
    while identify(child):
        time.sleep(0.01)
    assert not alive_to(STRANGER, folder)
    for pipe in (program.process.stdin, program.process.stdout):
        assert pipe
        pipe.close()
