"""`vgpurun guard` on a real GPU: programs past the library are stopped, and trainings are left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runners import MAY_UNMOUNT, PROGRAMS, Container, answer, vgpurun

from support import CHECKOUT, unavailable
from vgpurun.inventory import guarded

TRAINING_S = float(os.environ.get("VGPURUN_STRESS_SECONDS", "60"))  # 600 is what a release wants


@pytest.fixture
def guard() -> Iterator[subprocess.Popen[str]]:
    """A guard that ends what it acts on."""
    if os.geteuid() != 0:
        unavailable("the guard takes root")
    command = [sys.executable, "-m", "vgpurun", "guard", "--memory", "kill"]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and "memory above a limit: kill" in process.stderr.readline()
        yield process
        process.terminate()


def acted(since_s: float) -> list[tuple[str, str, str]]:
    return [
        (each.action.verb, each.action.cause, each.action.name) for each in guarded.actions() if each.at_s >= since_s
    ]


def test_each_escape_is_stopped(guard: subprocess.Popen[str], glibc_image: str) -> None:
    done = vgpurun(["verify", "--hostile", "--mem", "2g", "--format", "json", glibc_image])
    (found,) = json.loads(done.stdout)
    checks: dict[str, Any] = {each["name"]: each for each in found["checks"]}
    print(done.stdout)
    assert found["passed"], [each for each in checks.values() if each["status"] == "fail"]
    assert checks["escape: plain"]["stopped_by"] == "the library"
    assert checks["escape: driver's own symbols"]["stopped_by"] in ("the guard", "the driver's own limit")
    assert guard.poll() is None


@pytest.mark.parametrize("way", ["unmounted", "static"])
def test_a_program_without_the_library(
    guard: subprocess.Popen[str], python: str, host_image: Path, tmp_path: Path, way: str
) -> None:
    container, name, began_s = Container(python, host_image), f"past-{os.getpid()}", time.time()
    options = ["--name", name, "--gpus", "device=0", "--mem", "2g", "--enforce", "library"]
    if way == "unmounted":
        fill = " ".join(container.program("driver_fill.py"))
        done = container.run([*options, *MAY_UNMOUNT], ["sh", "-c", f"umount /etc/ld.so.preload && {fill} && sleep 10"])
    else:
        program = tmp_path / "static_fill"
        compiled = subprocess.run(["gcc", "-static", "-w", "-o", program, PROGRAMS / "static_fill.c"])
        if compiled.returncode:
            unavailable("no static C library")
        done = container.run([*options, f"-v{program}:/tmp/static_fill:ro"], ["/tmp/static_fill"])
        if done.returncode in (2, 3, 139):
            pytest.skip(f"a static program cannot use this driver: {done.stderr}")
    assert done.returncode == 137, done.stderr
    assert acted(began_s) == [("kill", "memory", name)]
    assert guard.poll() is None


def test_trainings_are_left_alone(guard: subprocess.Popen[str], python: str, host_image: Path) -> None:
    container, began_s = Container(python, host_image), time.time()
    names = [f"training-{os.getpid()}-{number}" for number in range(2)]
    try:
        for name in names:
            limits = ["-d", "-i", "--name", name, "--mem", "4g", "--sm", "40", "--gpus", "device=0"]
            assert container.run(limits, container.program("followed.py")).returncode == 0
        while time.time() < began_s + TRAINING_S:
            filled = container.run(["--mem", "2g", "--gpus", "device=0"], container.program("driver_fill.py"))
            assert acted(began_s) == [] and guard.poll() is None
            print(f"{time.time() - began_s:.0f} s: the guard has not acted", flush=True)
            assert answer(filled)["result"] == 2, filled.stderr
            time.sleep(1)
    finally:
        vgpurun(["rm", "-f", *names])
