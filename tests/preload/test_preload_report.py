"""The report of what the library recorded: exact where the program's own counts are, and whole after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox

from cuda_driver import CudaError, Driver
from support.trace_rules import assert_nested

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT_MIB = 1024
COPIES, LAUNCHES, BYTES = 20, 60, MIB


def known() -> None:
    """Make a known number of calls: a buffer that grows, copies there and back, and kernels of 1 ms."""
    d = Driver.started()
    held = [d.mem_alloc(32 * MIB) for _ in range(4)]
    kernel, stream = d.kernel("spin_1ms"), d.stream()
    for _ in range(COPIES):
        d.copy_to_device(held[0], bytes(BYTES))
        for _ in range(LAUNCHES // COPIES):
            d.launch(kernel, stream)
        d.stream_synchronize(stream)
        d.copy_from_device(held[0], BYTES)
    print("done", flush=True)


def report(output_format: str, folder: Path, *more: str) -> str:
    command = [sys.executable, "-m", "vgpurun", "report", "--format", output_format, str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def total(found: dict[str, Any], api: str) -> dict[str, Any]:
    return next(each for each in found["apis"] if each["api"] == api)


def test_a_run_is_reported_as_it_was(sandbox: Sandbox, tmp_path: Path) -> None:
    limits = {"CUDA_DEVICE_MEMORY_LIMIT": f"{LIMIT_MIB}m", "CUDA_DEVICE_SM_LIMIT": "60", "PFLOG": str(tmp_path)}
    assert sandbox.python(known, **limits) == "done"
    found = json.loads(report("json", tmp_path))
    assert (total(found, "cuLaunchKernel")["calls"], total(found, "cuMemAlloc")["calls"]) == (LAUNCHES, 4)
    assert total(found, "cuMemAlloc")["size_bytes"] == 128 * MIB
    copies = {copy["kind"]: (copy["calls"], copy["size_bytes"]) for copy in found["copies"]}
    assert copies == {"host_to_device": (COPIES, COPIES * BYTES), "device_to_host": (COPIES, COPIES * BYTES)}
    (device,) = found["devices"]
    assert (device["memory_limit_bytes"], device["sm_limit_percent"]) == (LIMIT_MIB * MIB, 60)
    assert 128 * MIB <= device["memory_peak_bytes"] <= LIMIT_MIB * MIB
    assert device["gpu_ns"] > 0.5 * LAUNCHES * 1_000_000
    (kernel,) = found["kernels"]
    assert (kernel["name"], kernel["launches"]) == ("spin_1ms", LAUNCHES)
    (process,) = found["processes"]
    assert process["ended_ns"] and process["dropped"] == 0
    events = json.loads(_trace(tmp_path))["traceEvents"]
    assert (
        sum(event["name"] == "cuLaunchKernel" and event["cat"] == "api" for event in events if event["ph"] == "X")
        == LAUNCHES
    )


def test_of_many_processes_one_is_killed(sandbox: Sandbox, tmp_path: Path) -> None:
    def wait() -> None:
        known()
        input()

    programs = [sandbox.start_python(wait, PFLOG=str(tmp_path), CUDA_DEVICE_MEMORY_LIMIT="4g") for _ in range(5)]
    for program in programs:
        assert program.stdout is not None and program.stdout.readline() == "done\n"
    programs[0].kill()
    for program in programs:
        program.communicate("\n")
    assert_nested(json.loads(_trace(tmp_path))["traceEvents"])
    found = json.loads(report("json", tmp_path))
    assert {process["pid"] for process in found["processes"] if not process["ended_ns"]} == {programs[0].pid}
    assert len(found["processes"]) == 5
    assert total(found, "cuLaunchKernel")["calls"] == 5 * LAUNCHES
    assert f"Process {programs[0].pid} has no end" in report("text", tmp_path)
    report("alnair", tmp_path)
    timeline = (tmp_path / "timeline.log").read_text().splitlines()
    assert sum(line.startswith("name:cuLaunchKernel,") for line in timeline) == 5 * LAUNCHES
    assert "name:cuLaunchKernel,count:300," in (tmp_path / "metrics.log").read_text()


def test_a_short_peak_is_seen(sandbox: Sandbox, tmp_path: Path) -> None:
    def program() -> None:
        d = Driver.started()
        held = []
        with suppress(CudaError):
            while True:
                held.append(d.mem_alloc(64 * MIB))
        for each in held:
            d.mem_free(each)
        print(len(held))

    limits = {"CUDA_DEVICE_MEMORY_LIMIT": f"{LIMIT_MIB}m", "PFLOG": str(tmp_path)}
    assert int(sandbox.python(program, **limits)) == 7
    (device,) = json.loads(report("json", tmp_path))["devices"]
    assert device["memory_peak_bytes"] > (LIMIT_MIB - 64) * MIB
    assert "Calls that failed: cuMemAlloc once." in report("text", tmp_path)


def _trace(folder: Path) -> str:
    path = folder / "trace.json"
    report("trace", folder, f"--output={path}")
    return path.read_text()
