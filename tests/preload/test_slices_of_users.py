"""A slice of several users without containers: each counts in it with the others, and nobody else can."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import CHECKOUT, python_of, unavailable
from support.suspension import PATTERNS, Host, Program
from vgpurun.limits.usage_file import read_usage

MEMBER, STRANGER = 61301, 61302
PYTHON = "/usr/bin/python3"  # that of the tests may lie in root's home


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
                assert process.stdin
                process.stdin.close()
                process.wait(20)


def test_its_users_count_together_and_others_are_refused(shared: Host) -> None:
    for each in shared.folder.glob("sim*"):
        each.chmod(0o666)
    roots = Program(shared, "--slice", "team")
    with program_of(shared, MEMBER) as theirs:
        assert theirs.stdout and theirs.stderr
        said = theirs.stdout.readline()
        assert said == "ready\n", theirs.stderr.read()
        (reading,) = read_usage(shared.folder / "state/slices/team/run/usage", shared.uuids[:1]) or ()
        assert reading.processes == 2
    with program_of(shared, STRANGER) as refused:
        assert refused.stderr and "is not for user 61302" in refused.stderr.read()
    roots.end()
