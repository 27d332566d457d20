"""Programs outside vgpurun are shown with whose they are; those inside, and their children, are not taken for such."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cuda_driver import Driver
from support import CHECKOUT, own_gpu_config
from support.programs import text_of
from vgpurun.util.users import current_user

MIB = 1 << 20


def hold() -> None:
    """Hold that many MiB, in a child too where there are more.

    Each says its PID in one write: print without a buffer takes two, and those of parent and child mix.
    """
    if len(sys.argv) > 2 and os.fork() == 0:
        sys.argv = sys.argv[1:]
    d = Driver.started()
    d.mem_alloc(int(sys.argv[1]) << 20)
    os.write(1, b"%d\n" % os.getpid())
    sys.stdin.readline()


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return environment | {
        "VGPURUN_DRIVER": "sim",
        "VGPUSIM_CONFIG": own_gpu_config(tmp_path),
        "VGPUSIM_STATE": str(tmp_path / "sim.state"),
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'tests'}",
        "COLUMNS": "160",
    }


@contextmanager
def holding(environment: dict[str, str], *before: str, sizes_mib: tuple[int, ...]) -> Iterator[list[int]]:
    command = [*before, sys.executable, "-c", text_of(hold), *map(str, sizes_mib)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as program:
        yield [int(program.stdout.readline()) for _ in sizes_mib]
        program.communicate("\n" * len(sizes_mib))


def smi(environment: dict[str, str], *options: str) -> str:
    command = [sys.executable, "-m", "vgpurun", "smi", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
def test_whose_the_rest_is(environment: dict[str, str]) -> None:
    sim = CHECKOUT / "lib" / "build" / "sim"
    plain = environment | {"LD_LIBRARY_PATH": str(sim)}
    inside = (sys.executable, "-m", "vgpurun", "local", "--mem", "2g", "--")
    with holding(plain, sizes_mib=(700,)) as (outsider,), holding(environment, *inside, sizes_mib=(300, 400)):
        (gpu,) = json.loads(smi(environment, "--format", "json"))["gpus"]
        (found,) = gpu["outside"]
        expected: dict[str, Any] = {"pid": outsider, "user": current_user(), "held_bytes": gpu["memory_outside_bytes"]}
        assert found.items() >= expected.items() and found["held_bytes"] >= 700 * MIB
        assert found["command"].startswith("python") and found["used_percent"] == 0
        (row,) = (line for line in smi(environment).splitlines() if "outside vgpurun" in line)
        assert f"({outsider})" in row and current_user() in row and " 0 %" in row
    (gpu,) = json.loads(smi(environment, "--format", "json"))["gpus"]
    assert gpu["outside"] == [] and "outside" not in smi(environment)
