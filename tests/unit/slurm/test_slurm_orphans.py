"""Which processes the end of a job ends: its own, wherever they are, and no stranger's, whatever he was sent."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cgroup_maker import cgroups

from support.second_user import UID, needs_two_users
from vgpurun.slices.store import Slice
from vgpurun.slurm import orphans

JOB = str(4_000_000_000 + os.getpid())
USER, STRANGER = 1235, UID
pytestmark = needs_two_users


@pytest.fixture
def share(tmp_path: Path) -> Slice:
    """The slice of a job of this user's."""
    for name, uid, mode in (("run", USER, 0o600), ("etc", 0, 0o644)):
        file = tmp_path / "share" / name / {"run": "usage", "etc": "limits"}[name]
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(4096))
        file.chmod(mode)
        os.chown(file, uid, uid)
    return Slice(f"slurm-{JOB}", tmp_path / "share", (), "ann")


@contextmanager
def process(uid: int, begin: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A process of a user that has begun by this, as root, and then waits."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            kept = begin()
            os.setgid(uid)
            os.setuid(uid)
            os.write(told, b"!")
            time.sleep(60)
            del kept
        os._exit(1)
    os.close(told)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def maps(file: Path) -> Callable[[], mmap.mmap]:
    def map_it() -> mmap.mmap:
        opened = os.open(file, os.O_RDONLY)
        return mmap.mmap(opened, 0, mmap.MAP_SHARED, mmap.PROT_READ)

    return map_it


def is_alive(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG) == (0, 0)


@pytest.mark.parametrize("uid", [STRANGER, USER], ids=["a stranger", "the user"])
def test_a_descriptor_that_was_passed_says_nothing(share: Slice, uid: int) -> None:
    """The stranger is a daemon that takes messages with descriptors, as D-Bus does; the user's is of another job."""
    sends, receives = socket.socketpair()

    def receive() -> object:
        return socket.recv_fds(receives, 1, 1)

    with share.usage.open("r+b") as usage:
        socket.send_fds(sends, [b"!"], [usage.fileno()])
        with process(uid, receive) as pid:
            assert orphans.kill(share, JOB) == []
            assert is_alive(pid)


def test_what_has_the_limits_mapped_is_ended_if_it_is_the_users(share: Slice) -> None:
    limits = share.folder / "etc" / "limits"
    with (
        process(USER, maps(limits)) as left,
        process(STRANGER, maps(limits)) as looks,
        process(0, maps(limits)) as root,
    ):
        assert orphans.kill(share, JOB) == [left]
        assert not is_alive(left) and is_alive(looks) and is_alive(root)


def test_what_has_the_usage_file_mounted_is_ended(share: Slice, tmp_path: Path) -> None:
    """A container of the job, say, whose processes are of any user."""
    (tmp_path / "target").touch()

    mount = f"mount --bind {share.usage} {tmp_path / 'target'} && echo && exec sleep 60"
    command = ["unshare", "--mount", "sh", "-c", mount]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as container:
        assert container.stdout is not None and container.stdout.readline()
        assert orphans.kill(share, JOB) == [container.pid]
        assert container.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "path"), [("v1", f"slurm_n1/uid_{USER}/job_{{}}/step_0"), ("v2", "system.slice/slurmstepd.scope/job_{}")]
)
def test_what_is_in_the_cgroup_of_the_job_is_ended(share: Slice, tmp_path: Path, kind: str, path: str) -> None:
    with cgroups(kind, tmp_path) as make:
        around = make(JOB).folder
        own, other = around / path.format(JOB), around / path.format(f"{JOB}1")
        own.mkdir(parents=True)
        other.mkdir(parents=True)
        with process(STRANGER) as pid, process(STRANGER) as another:
            (own / "cgroup.procs").write_text(str(pid))
            (other / "cgroup.procs").write_text(str(another))
            assert orphans.kill(share, JOB) == [pid]
            assert not is_alive(pid) and is_alive(another)
