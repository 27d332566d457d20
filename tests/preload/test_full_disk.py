"""Suspensions and moves while the state folder's disk is full, or read-only, from each of their steps on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from sandbox import PROGRAMS
from test_moves_crashes import check

from support import unavailable
from support.suspension import Host, Program

CHOSEN = [("suspend", "read-only"), ("resume", "full"), ("move", "full")]  # each verb and each kind


@pytest.fixture
def state(host: Host) -> Iterator[Path]:
    """The host's state folder on a disk of its own."""
    if os.geteuid():
        unavailable("a disk of its own takes root")
    folder = host.folder / "state"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", folder], check=True)
    yield folder
    while subprocess.run(["umount", folder], stderr=subprocess.DEVNULL).returncode == 0:
        pass


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        pytest.param(verb, kind, marks=[pytest.mark.exhaustive] * ((verb, kind) not in CHOSEN))
        for verb, kind in product(("suspend", "resume", "move"), ("full", "read-only"))
    ],
)
def test_each_step(state: Path, host: Host, start: Callable[..., Program], verb: str, kind: str) -> None:
    """No process is left locked. The next command does what a full disk has prevented."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    command = [sys.executable, PROGRAMS / "disk_breaks.py", program.pid, verb, kind, state]
    ends = []
    with subprocess.Popen(
        command, env=host.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as breaking:
        for line in breaking.stdout:
            ends.append(json.loads(line))
            print(ends[-1])
            assert program.asks("check") == "right 4"
            breaking.stdin.write("\n")
            breaking.stdin.flush()
    assert breaking.returncode == 0
    assert len(ends) > 4
    for end in ends:
        assert end["state"] in (("RUNNING",) if verb == "move" else ("RUNNING", "CHECKPOINTED")), end
    check(host, program)
