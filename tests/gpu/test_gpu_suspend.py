"""Suspend and resume on a real GPU: the same bits afterwards, and nothing on the GPU meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from runners import PROGRAMS, vgpurun

from support import CHECKOUT, unavailable
from vgpurun.host import gpus
from vgpurun.host.checkpoints import CheckpointError, Checkpoints
from vgpurun.inventory import guarded

TIMES = 20
MIB = 1 << 20
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.fixture(autouse=True)
def _driver() -> None:
    version = gpus.read_driver(gpus.list_gpus()).version
    if int(version.split(".")[0]) < 570:
        unavailable(f"driver {version} takes nothing off a GPU: that came with 570")


@contextmanager
def running(
    python: str, *words: str, gpus_wanted: str = "device=0", out: IO[str] | None = None, allocator: str = ""
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "vgpurun", "local", "--mem", "4g", "--gpus", gpus_wanted, "--", python, *words]
    environment = {**os.environ, **DETERMINISTIC, "PYTORCH_CUDA_ALLOC_CONF": allocator}
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, stdin=subprocess.PIPE, stdout=out or subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            suspended(process, "resume")  # a program that is off the GPU would not end
            process.terminate()


def suspended(process: subprocess.Popen[str], verb: str = "suspend", *options: str) -> subprocess.CompletedProcess[str]:
    return vgpurun([verb, *options, "--process", str(process.pid)])


def number(process: subprocess.Popen[str]) -> int:
    """Return the PID of the program below `vgpurun local`."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def read_step(out: Path, after: int) -> int:
    """Wait for a step after this one, and return the last one's number."""
    while (seen := out.read_text().count("\n")) <= after:
        time.sleep(0.01)
    return seen


@pytest.mark.timeout(400)
@pytest.mark.parametrize("work", ["train", "infer"])
def test_the_same_bits(python: str, work: str, tmp_path: Path) -> None:
    """Each step's bits are those of a run that nobody has interrupted."""
    program, out = str(PROGRAMS / "torch_suspended.py"), tmp_path / "steps"
    with out.open("w") as file, running(python, program, work, "1000000", out=file) as process:
        step = read_step(out, 0)
        for _ in range(TIMES):
            done = suspended(process)
            assert done.returncode == 0, done.stderr
            (use,) = gpus.read_use(gpus.list_gpus()[:1])
            print(done.stdout.strip(), "; NVML shows", use.memory_used_bytes // MIB, "MiB")
            assert suspended(process, "resume").returncode == 0
            step = read_step(out, step)
    seen = out.read_text().split("\n")[:step]
    with running(python, program, work, str(step)) as process:
        assert process.stdout.read().splitlines() == seen


@pytest.mark.parametrize("kind", ["memory", "streams", "graph", "pinned", "pools", "expandable", "workers"])
def test_what_a_program_holds(python: str, kind: str) -> None:
    """All of it is as it was."""
    allocator = {"pools": "backend:cudaMallocAsync", "expandable": "expandable_segments:True"}.get(kind, "")
    with running(python, str(PROGRAMS / "torch_kept.py"), kind, allocator=allocator) as process:
        held(process, "")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("managed", "CUDA_ERROR_NOT_SUPPORTED"),
        ("ipc", "shares GPU memory with others (CUDA IPC)"),
        ("nccl", "has loaded NCCL and uses 2 GPUs"),
        ("peers", "has loaded NCCL and uses 2 GPUs"),  # and does not use it: PyTorch always loads it
    ],
)
def test_what_is_refused(python: str, kind: str, message: str) -> None:
    """The program runs on."""
    wanted = "device=0,1" if kind in ("nccl", "peers") else "device=0"
    if len(gpus.list_gpus()) < len(wanted.split(",")):
        unavailable("there is one GPU")
    with running(python, str(PROGRAMS / "torch_kept.py"), kind, gpus_wanted=wanted) as process:
        held(process, message)


def test_memory_of_two_gpus(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(gpus.list_gpus()) < 2:
        unavailable("there is one GPU")
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "tests"), prepend=os.pathsep)
    with running(python, str(PROGRAMS / "driver_kept.py"), gpus_wanted="device=0,1") as process:
        held(process, "")


def held(process: subprocess.Popen[str], refusal: str) -> None:
    """Suspend a program and bring it back, or be refused; then it has what it had."""
    assert process.stdout.readline() == "ready\n"
    done = suspended(process, "suspend", "--hold")
    print(done.stdout, done.stderr)
    assert done.returncode == (125 if refusal else 0) and refusal in done.stderr, done.stderr
    if not refusal:
        assert suspended(process, "resume").returncode == 0
    assert process.communicate("\n")[0] == "True\n"


def test_nothing_of_it_is_on_the_gpu(python: str) -> None:
    """NVML lists no process, and at most 50 MiB more than before."""
    (before,) = gpus.read_use(gpus.list_gpus()[:1])
    with running(python, str(PROGRAMS / "torch_suspended.py"), "infer", "1000000") as process:
        process.stdout.readline()
        assert suspended(process, "suspend", "--hold").returncode == 0
        (meanwhile,) = gpus.read_use(gpus.list_gpus()[:1])
        assert meanwhile.memory_used_bytes - before.memory_used_bytes <= 50 * MIB
        assert number(process) not in gpus.read_processes(gpus.list_gpus()[0])


def test_what_the_driver_says_of_strangers() -> None:
    """The driver has nothing to say of a process without CUDA, and changes nothing of it."""
    with subprocess.Popen(["sleep", "60"]) as stranger, Checkpoints() as driver:
        try:
            print(driver.state(stranger.pid))
            for change in (lambda pid: driver.lock(pid, 100), driver.checkpoint, driver.restore, driver.unlock):
                try:
                    change(stranger.pid)
                    print("done", driver.state(stranger.pid))
                except CheckpointError as error:
                    print(error)
            assert stranger.poll() is None
        finally:
            stranger.kill()


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
