"""The exporter beside programs on a real GPU: NVML's own figures are the witness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import CHECKOUT
from support.programs import text_of
from support.scraping import Exporter, exporter, value
from vgpurun.host import gpus

pytest.importorskip("prometheus_client")
MIB = 1 << 20


def hold_and_compute() -> None:
    import torch

    _held = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    a = torch.randn(4096, 4096, device="cuda")
    out = torch.empty_like(a)
    print("ready", flush=True)
    while True:
        for _ in range(20):
            torch.mm(a, a, out=out)
        torch.cuda.synchronize()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "VGPURUN_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def gpu() -> gpus.Gpu:
    """The GPU that most likely nobody else uses."""
    return min(gpus.list_gpus(), key=lambda gpu: len(gpus.read_processes(gpu)))


@contextmanager
def busy(python: str, environment: dict[str, str], gpu: gpus.Gpu, *limits: str) -> Iterator[int]:
    """The PID of `vgpurun local` with a program that never stops computing, under limits."""
    options = ["--gpus", f"device={gpu.uuid}", *limits]
    command = [sys.executable, "-m", "vgpurun", "local", *options, "--", python, "-u", "-c", text_of(hold_and_compute)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.terminate()  # which reaches the program, too
            process.wait(30)


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have, and so on."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child, *descendants(child)}
    return found


def of(running: Exporter, name: str, pid: int) -> float:
    found = value(running.scrape(), f"vgpurun_container_{name}", container=f"process {pid}")
    assert found is not None, name
    return found


def test_what_a_limited_program_uses(python: str, environment: dict[str, str], gpu: gpus.Gpu) -> None:
    limits = ("--mem", "4g", "--sm", "50")
    watched = exporter(environment, "--no-history", driver="host")
    with busy(python, environment, gpu, *limits) as pid, watched as running:
        first_s, began_s = of(running, "gpu_seconds_total", pid), time.monotonic()
        time.sleep(8)
        share = (of(running, "gpu_seconds_total", pid) - first_s) / (time.monotonic() - began_s)
        print(f"share {share:.3f}, look {value(running.scrape(), 'vgpurun_exporter_look_duration_seconds')} s")
        assert share == pytest.approx(0.5, abs=0.05)
        assert of(running, "sm_used_ratio", pid) == pytest.approx(0.5, abs=0.1)
        assert of(running, "memory_buffer_bytes", pid) >= 512 * MIB
        held, own = gpus.read_processes(gpu), descendants(pid)
        held_bytes = sum(held.get(each, 0) for each in own)
        assert held_bytes > 512 * MIB, f"NVML lists {held}, the program is {own}"
        assert of(running, "memory_used_bytes", pid) == pytest.approx(held_bytes, abs=64 * MIB)
        assert of(running, "launches_total", pid) > 100
        assert of(running, "last_kernel_age_seconds", pid) < 5


def test_what_one_without_a_limit_uses_alone_is_estimated(
    python: str, environment: dict[str, str], gpu: gpus.Gpu
) -> None:
    watched = exporter(environment, "--history-interval", "1", driver="host")
    with busy(python, environment, gpu, "--mem", "4g") as pid, watched:
        deadline_s = time.monotonic() + 40
        rows: list[dict[str, Any]] = []
        while not (own := [row for row in rows if row["estimated_seconds"] > 8]):
            on_gpu = f"beside it on the GPU {gpus.read_processes(gpu)}, the program is {descendants(pid)}"
            assert time.monotonic() < deadline_s, f"no estimate in {rows}; {on_gpu}"
            time.sleep(0.5)
            rows = [row for row in history(environment) if row["container"] == f"process {pid}"]
        (found,) = own
        print(found)
        assert found["gpu_uuid"] == gpu.uuid
        assert found["mean_share_ratio"] > 0.85, found


def history(environment: dict[str, str]) -> list[dict[str, Any]]:
    """A row for each container; none before the exporter has kept anything."""
    command = [sys.executable, "-m", "vgpurun", "history", "--by", "container", "--format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=CHECKOUT)
    rows: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    return rows
