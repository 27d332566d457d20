"""Frameworks and models under limits of several sizes, with the host's NVML as the witness of what they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest
from runners import PROGRAMS

from support import CHECKOUT

MIB = 1 << 20
PYTHON_PROGRAMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "convolution": (["models.py", "convolution"], {}),
    "transformer": (["models.py", "transformer"], {}),
    "compiled": (["models.py", "compiled"], {}),
    "native allocator": (["torch_memory.py"], {}),
    "expandable segments": (["torch_memory.py"], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "cudaMallocAsync": (["torch_memory.py"], {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "jax": (["jax_memory.py"], {}),
    "cupy": (["cupy_memory.py"], {}),
}


# JAX asks for three quarters of the GPU at once. At 2 GiB there is no room for that beside a context of half a GiB; its
# allocator then pieces its pool together and aborts on the first free, as on a real GPU that is so full.
SMALLER_POOL = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.6"}


def start(python: str, limit_gib: int, name: str) -> subprocess.Popen[str]:
    program, variables = PYTHON_PROGRAMS[name]
    command = [python, str(PROGRAMS / program[0]), *program[1:]]
    options = ["--overcommit", "--mem", f"{limit_gib}g", "--gpus", "device=0"]
    return subprocess.Popen(
        [sys.executable, "-m", "vgpurun", "local", *options, "--", *command],
        cwd=CHECKOUT,
        env={**os.environ, **variables, **(SMALLER_POOL if limit_gib == 2 else {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def descendants(pid: int) -> set[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return set()
    return {pid}.union(*(descendants(int(child)) for child in children))


def watch(processes: dict[str, subprocess.Popen[str]]) -> dict[str, float]:
    """The most that NVML on the host showed for each, in MiB, until all have ended."""
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    most = dict.fromkeys(processes, 0.0)
    while any(process.poll() is None for process in processes.values()):
        held = {each.pid: each.usedGpuMemory or 0 for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
        for name, process in processes.items():
            now = sum(held.get(pid, 0) for pid in descendants(process.pid)) / MIB
            most[name] = max(most[name], now)
        time.sleep(0.01)
    pynvml.nvmlShutdown()
    return most


def answers(processes: dict[str, subprocess.Popen[str]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, process in processes.items():
        output, errors = process.communicate()
        assert process.returncode == 0, (name, errors[-2000:])
        found[name] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.parametrize("limit_gib", [2, 4, 16])
def test_frameworks_stay_within_the_limit_and_recover(python: str, limit_gib: int) -> None:
    processes = {name: start(python, limit_gib, name) for name in PYTHON_PROGRAMS}
    most = watch(processes)
    found = answers(processes)
    print(limit_gib, json.dumps({name: [round(most[name]), found[name]] for name in found}))
    for name, mib in most.items():
        assert mib <= limit_gib * 1024, name
    for name in ("convolution", "transformer", "compiled"):
        assert found[name]["small"] == found[name]["again"] == "ran", name
        assert found[name]["refusal"] == "OutOfMemoryError", name
        assert found[name]["large"] in ("ran", "OutOfMemoryError"), name
    for name in ("native allocator", "expandable segments", "cudaMallocAsync", "jax", "cupy"):
        assert found[name]["works_afterwards"] and found[name]["refusal"], name
