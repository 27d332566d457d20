"""Suspend and resume on a real GPU: the same bits afterwards, and nothing on the GPU meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from runners import PROGRAMS, vgpurun

from support import CHECKOUT, unavailable
from vgpurun.host import gpus
from vgpurun.host.checkpoints import CheckpointError, Checkpoints
from vgpurun.inventory import guarded

TIMES = 20
STEPS = 200
MIB = 1 << 20
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.fixture(autouse=True)
def _driver() -> None:
    version = gpus.read_driver(gpus.list_gpus()).version
    if int(version.split(".")[0]) < 570:
        unavailable(f"driver {version} takes nothing off a GPU: that came with 570")


@contextmanager
def running(python: str, *words: str, environment: Mapping[str, str] = {}) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "vgpurun", "local", "--mem", "8g", "--gpus", "device=0", "--", python, *words]
    with subprocess.Popen(
        command, cwd=CHECKOUT, env={**os.environ, **DETERMINISTIC, **environment}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def suspended(process: subprocess.Popen[str], verb: str = "suspend") -> subprocess.CompletedProcess[str]:
    return vgpurun([verb, "--process", str(process.pid)])


@pytest.mark.parametrize("work", ["train", "infer"])
def test_the_same_bits(python: str, work: str) -> None:
    program = [str(PROGRAMS / "torch_suspended.py"), work, str(STEPS)]
    with running(python, *program) as process:
        assert process.stdout
        expected = process.stdout.readlines()
    assert len(expected) == STEPS
    with running(python, *program) as process:
        assert process.stdout
        seen = [process.stdout.readline()]
        for _ in range(TIMES):
            done = suspended(process)
            assert done.returncode == 0, done.stderr
            (use,) = gpus.read_use(gpus.list_gpus()[:1])
            print(done.stdout.strip(), "; NVML shows", use.memory_used_bytes // MIB, "MiB")
            back = suspended(process, "resume")
            assert back.returncode == 0, back.stderr
            seen.append(process.stdout.readline())
        seen += process.stdout.readlines()
    assert seen == expected


def test_nothing_of_it_is_on_the_gpu(python: str) -> None:
    """NVML lists no process, and at most 50 MiB more than before."""
    (before,) = gpus.read_use(gpus.list_gpus()[:1])
    with running(python, str(PROGRAMS / "torch_suspended.py"), "infer", "1000000") as process:
        assert process.stdout
        process.stdout.readline()
        done = vgpurun(["suspend", "--hold", "--process", str(process.pid)])
        assert done.returncode == 0, done.stderr
        (meanwhile,) = gpus.read_use(gpus.list_gpus()[:1])
        assert meanwhile.memory_used_bytes - before.memory_used_bytes <= 50 * MIB
        assert gpus.read_processes(gpus.list_gpus()[0]) == {}


def test_what_the_driver_says_of_strangers() -> None:
    """The errors that the simulated driver gives by our reading of the documentation."""
    with Checkpoints() as driver:
        assert driver.state(os.getpid()) is None
        with pytest.raises(CheckpointError) as raised:
            driver.lock(os.getpid(), 100)
        print(raised.value)


@pytest.mark.timeout(1200)
def test_two_trainings_of_most_of_the_memory_take_turns(python: str) -> None:
    """Each has 90 % of the GPU's memory, and both together are at least 70 % as fast as one after the other."""
    if os.geteuid() or not guarded.is_running():
        unavailable("turns are given by vgpurun guard, which does not run here, to programs of root")
    gib = gpus.list_gpus()[0].memory_bytes * 9 // 10 // (1 << 30) - 4
    command = [sys.executable, "tests/bench/swap.py", "--python", python, "--gib", str(gib), "--times", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert int(done.stdout.split()[-1].rstrip("%")) >= 70
