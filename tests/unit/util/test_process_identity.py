"""Which process a PID means: a reused PID, another boot and another user's process are not the recorded one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.programs import text_of
from vgpurun.util import process_identity
from vgpurun.util.process_identity import ProcessIdentity, boot_id, identify, read_stat, uid_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def identity(pid: int) -> ProcessIdentity:
    found = identify(pid)
    assert found is not None
    return found


def test_a_living_process_is_itself(sleeper: subprocess.Popen[bytes]) -> None:
    found = identity(sleeper.pid)
    assert found.is_alive()
    assert found.is_alive(uid=os.getuid())
    assert found == ProcessIdentity(*found)


def test_a_process_that_ended_is_not_alive_also_before_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    found = identity(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert not found.is_alive()
    assert identify(sleeper.pid) is None
    assert not found.signal(signal.SIGTERM)
    sleeper.wait()
    assert not found.is_alive()
    assert not found.signal(signal.SIGTERM)


@pytest.mark.parametrize("field", ["started_ticks", "boot_id", "pid"])
def test_no_signal_reaches_a_process_that_is_not_the_recorded_one(sleeper: subprocess.Popen[bytes], field: str) -> None:
    found = identity(sleeper.pid)
    changed = {"started_ticks": found.started_ticks - 1, "boot_id": "of another boot", "pid": 1 << 40}[field]
    another = ProcessIdentity(**{**found._asdict(), field: changed})
    assert not another.is_alive()
    assert not another.signal(signal.SIGKILL)
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [0, -1])
def test_no_number_means_a_group_of_processes(pid: int) -> None:
    other = ProcessIdentity(pid, 1, boot_id())
    assert not other.is_alive()
    assert identify(pid) is None


def test_a_signal_reaches_the_recorded_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert identity(sleeper.pid).signal(signal.SIGTERM, uid=os.getuid())
    assert sleeper.wait() == -signal.SIGTERM


def test_a_process_of_another_user_is_not_what_that_user_recorded(sleeper: subprocess.Popen[bytes]) -> None:
    found = identity(sleeper.pid)
    assert not found.is_alive(uid=os.getuid() + 1)
    assert not found.signal(signal.SIGKILL, uid=os.getuid() + 1)
    assert sleeper.poll() is None
    assert uid_of(sleeper.pid) == os.getuid()


def first_thread_ends() -> None:
    import ctypes
    import threading

    threading.Thread(target=input).start()
    print("ready", flush=True)
    ctypes.CDLL(None).pthread_exit(None)


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    program = [sys.executable, "-c", text_of(first_thread_ends)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        while read_stat(process.pid).state != "Z":
            assert process.poll() is None
        found = identity(process.pid)
        assert found.is_alive()
        assert found.signal(signal.SIGKILL)
        process.wait()
        assert not found.is_alive()


@contextmanager
def hidden_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let /proc show none, as with hidepid=2 to a user that is not root."""
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    yield
    monkeypatch.undo()


def test_a_hidden_process_may_be_alive_but_gets_no_signal(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = identity(sleeper.pid)
    with hidden_processes(monkeypatch, tmp_path):
        assert found.is_alive()
        assert not found.signal(signal.SIGKILL)
    assert sleeper.poll() is None
