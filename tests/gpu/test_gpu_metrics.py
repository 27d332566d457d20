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

import pytest

from scraping import Exporter, exporter, value, wait_for
from support import CHECKOUT
from vgpurun.host import gpus

pytest.importorskip("prometheus_client")
MIB = 1 << 20
BUSY = """
import torch
held = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
a = torch.randn(4096, 4096, device="cuda")
print("ready", flush=True)
while True:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "VGPURUN_STATE_DIR": str(tmp_path / "state")}


@contextmanager
def busy(python: str, environment: dict[str, str], *limits: str) -> Iterator[int]:
    """The PID of a program that never stops computing, under limits."""
    command = [sys.executable, "-m", "vgpurun", "local", *limits, "--", python, "-u", "-c", BUSY]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def of(running: Exporter, name: str, pid: int) -> float:
    found = value(running.scrape(), f"vgpurun_container_{name}", container=f"process {pid}")
    assert found is not None, name
    return found


def test_what_a_limited_program_uses(python: str, environment: dict[str, str]) -> None:
    limits = ("--mem", "4g", "--sm", "50")
    watched = exporter(environment, "--no-history", driver="host")
    with busy(python, environment, *limits) as pid, watched as running:
        first_s, began_s = of(running, "gpu_seconds_total", pid), time.monotonic()
        time.sleep(8)
        share = (of(running, "gpu_seconds_total", pid) - first_s) / (time.monotonic() - began_s)
        print(f"share {share:.3f}, look {value(running.scrape(), 'vgpurun_exporter_look_duration_seconds')} s")
        assert share == pytest.approx(0.5, abs=0.05)
        assert of(running, "sm_used_ratio", pid) == pytest.approx(0.5, abs=0.1)
        assert of(running, "memory_buffer_bytes", pid) >= 512 * MIB
        (held,) = {each[pid] for gpu in gpus.list_gpus() if pid in (each := gpus.read_processes(gpu))}
        assert of(running, "memory_used_bytes", pid) == pytest.approx(held, abs=64 * MIB)
        assert of(running, "launches_total", pid) > 100
        assert of(running, "last_kernel_age_seconds", pid) < 5


def test_what_one_without_a_limit_uses_alone_is_estimated(python: str, environment: dict[str, str]) -> None:
    with busy(python, environment, "--mem", "4g"), exporter(environment, "--history-interval", "1", driver="host"):

        def account() -> dict[str, float]:
            command = [sys.executable, "-m", "vgpurun", "history", "--format", "json"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=CHECKOUT)
            found = json.loads(done.stdout) if done.returncode == 0 else []
            return found[0] if found and found[0]["estimated_seconds"] > 8 else {}

        found = wait_for(account, "estimate")
        print(found)
        assert found["mean_share_ratio"] > 0.85
