"""A second user of the host, who opens, locks and maps what all may, and waits for what is new."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

UID = 61234

needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes take root")


@contextmanager
def attacked_by(attack: Callable[[], object]) -> Iterator[int]:
    """Yield a process of the second user that has done this, and keeps what it has got by it until the end."""
    done, tell = os.pipe()
    pid = os.fork()
    if not pid:
        _attack(attack, tell)
    os.close(tell)
    try:
        with os.fdopen(done, "rb") as told:
            error = told.read().decode()
        assert not error, error
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _attack(attack: Callable[[], object], tell: int) -> None:
    """Nothing of the test's own is open or to run in this process, and no end of it is the test's."""
    os.closerange(3, tell)
    os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        become_second_user()
        kept = attack()  # noqa: F841
    except BaseException:
        os.write(tell, traceback.format_exc().encode())
    os.close(tell)
    while True:
        signal.pause()


def become_second_user() -> None:
    """Give up all rights of root in this process."""
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)


@contextmanager
def as_second_user() -> Iterator[None]:
    """Be the second user in this process for a while; root's groups stay."""
    os.setresuid(UID, UID, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def everything_below(folder: Path) -> list[int]:
    """Return all files and folders there that this process may open for reading, open."""
    opened = []
    for place, folders, names in os.walk(folder):
        for each in (place, *(os.path.join(place, name) for name in (*folders, *names))):
            with suppress(OSError):
                opened.append(os.open(each, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
    return opened


@contextmanager
def public_folder() -> Iterator[Path]:
    """Yield a folder that every user can pass to."""
    made = Path(tempfile.mkdtemp(prefix="vgpurun-public-", dir="/tmp"))
    try:
        made.chmod(0o755)
        yield made
    finally:
        shutil.rmtree(made)


def lock_everything_below(folder: Path) -> list[int]:
    """Take all locks there that this process can: flocks, and shared locks of all bytes, which any reader may have."""
    opened = everything_below(folder)
    for file in opened:
        for lock in (lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB), _lock_bytes):
            with suppress(OSError):
                lock(file)
    return opened


def _lock_bytes(file: int) -> None:
    every_byte = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, every_byte)
