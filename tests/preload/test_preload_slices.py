"""Programs of several PID namespaces under one limit, as in the containers of a slice: all are 1 to themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml as nvml
import pytest
from sandbox import UUID, Sandbox

from cuda_driver import CudaError, Driver
from support import unavailable
from support.programs import text_of
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.quota import Quota

MIB = 1 << 20
CONTEXT_MIB = 518
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


def answer() -> None:
    """Hold memory, then answer each line.

    A number of MiB is allocated as well, anything else shows what NVML does.
    """
    d = Driver.started()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for line in sys.stdin:
        said: object = "ok"
        if line.strip().isdigit():
            try:
                d.mem_alloc(int(line) << 20)
            except CudaError as error:
                said = error.name
        else:
            rows = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            said = {
                "pid": os.getpid(),
                "listed": [[row.pid, row.usedGpuMemory >> 20] for row in rows],
                "used": nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20,
                "total": d.device_total_mem() >> 20,
            }
        print(json.dumps(said), flush=True)


class Member:
    """A program of the slice."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: object = "?") -> object:
        print(question, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """unshare ends as soon as the program has."""
        pid = self._process.pid
        os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text()), signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        unavailable("PID namespaces cannot be made: not root")


@contextmanager
def member(sandbox: Sandbox, limits: Path) -> Iterator[Member]:
    environment = sandbox.variables(VGPURUN_LIMITS_FILE=str(limits))
    command = [*UNSHARE, sys.executable, "-u", "-c", text_of(answer)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Member(process)
        finally:
            process.kill()


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits"
    path.write_bytes(limits_file.limits_bytes([(UUID, Quota(4096 * MIB))]))
    return path


def test_each_lists_its_own_by_the_right_pid_and_sees_the_memory_of_all(sandbox: Sandbox, limits: Path) -> None:
    with member(sandbox, limits) as one, member(sandbox, limits) as other:
        assert (one.ask(300), other.ask(500)) == ("ok", "ok")
        used = 300 + 500 + 2 * CONTEXT_MIB
        assert one.ask() == {"pid": 1, "listed": [[1, 300 + CONTEXT_MIB]], "used": used, "total": 4096}
        assert other.ask() == {"pid": 1, "listed": [[1, 500 + CONTEXT_MIB]], "used": used, "total": 4096}


def test_together_they_never_pass_the_limit_and_the_dead_leave_their_memory(sandbox: Sandbox, limits: Path) -> None:
    with member(sandbox, limits) as one, member(sandbox, limits) as other:
        assert (one.ask(1500), other.ask(1000)) == ("ok", "ok")
        assert (one.ask(600), other.ask(600)) == ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY")
        assert one.ask(4096 - 2500 - 2 * CONTEXT_MIB) == "ok"
        one.kill()
        assert other.ask(2500) == "ok"
        (reading,) = usage_file.read_usage(Path(sandbox.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"]), [UUID]) or ()
        assert (reading.memory_used_bytes, reading.processes) == ((3500 + CONTEXT_MIB) * MIB, 1)
