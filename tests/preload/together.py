"""Programs whose work is measured in real time: those that are compared begin together, and all of them work until the
last one has measured."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from sandbox import BUSY_MACHINE, MACHINE, UUID, Sandbox, simulated_machine

from cuda_driver import Driver
from support import assert_measured, go_on_together, short_folder

KERNEL_S = 2e-3  # spin_2ms, which keeps the GPU at work while a busy machine holds the program up for a moment


def work(d: Driver, seconds: float, launch: Callable[[], object], kernel_s: float = KERNEL_S) -> float:
    """Return what a launch in a loop completes, as a part of the time."""
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        launch()
        count += 1
    d.synchronize()
    return count * kernel_s / (time.monotonic() - began)


def started() -> tuple[Driver, int]:
    """Return the driver, and a kernel of KERNEL_S."""
    d = Driver.started()
    return d, d.kernel("spin_2ms")


def compare(d: Driver, k: int, launch: Callable[[], object]) -> None:
    """Print what launching so completes beside others.

    Each is seen by them before it works: what a program without a limit has launched alone, nobody takes back.
    """
    print("ready", flush=True)
    input()
    d.launch(k)
    d.synchronize()
    time.sleep(0.1)
    work(d, 0.3, lambda: d.launch(k))
    print(work(d, 1.2, launch), flush=True)
    while True:
        d.launch(k)


def compared() -> None:
    d, k = started()
    compare(d, k, lambda: d.launch(k))


def measured_together(programs: Sequence[subprocess.Popen[str]]) -> list[float]:
    """Return what each of these measures, started together as soon as all are ready; they are killed then."""
    try:
        go_on_together(programs)
        return [float(program.stdout.readline()) for program in programs if program.stdout is not None]
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def each_alone(sandbox: Sandbox, programs: Mapping[str, Sequence[str | Path]], **limits: str) -> dict[str, float]:
    """Return the share that each of these programs prints, on a GPU of its own.

    They run at the same time, since their GPUs are at work and this machine hardly is.
    """

    def share(program: Sequence[str | Path]) -> float:
        result = sandbox.run(program, **{**sandbox.own_gpu(), **limits})
        assert result.returncode == 0, result.stdout + result.stderr
        return float(result.stdout)

    with ThreadPoolExecutor(len(programs)) as pool:
        return dict(zip(programs, pool.map(share, programs.values()), strict=True))


def assert_shares(
    sandbox: Sandbox, programs: Mapping[str, Sequence[str | Path]], least: float, most: float, **limits: str
) -> None:
    """Each of these programs prints a share between these."""
    assert_measured(
        lambda: each_alone(sandbox, programs, **limits),
        lambda seen: all(least < share < most for share in seen.values()),
    )


def measuring(test: pytest.Function, request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Return a call of what a test measures; see the fixture `measured`."""
    measure = next(mark.kwargs["measure"] for mark in test.iter_markers("real_time") if "measure" in mark.kwargs)
    machine, *others = signature(measure).parameters
    given = test.callspec.params if hasattr(test, "callspec") else {}
    arguments = {name: given[name] if name in given else request.getfixturevalue(name) for name in others}

    def call() -> Any:
        gpus, text = UUID[:12], BUSY_MACHINE if machine == "busy_gpu" else MACHINE
        own = f"GPU-{os.urandom(4).hex()}"
        with (
            short_folder("vgpurun-measured-") as folder,
            simulated_machine(folder, text.replace(gpus, own), UUID.replace(gpus, own)) as made,
        ):
            return measure(made, **arguments)

    return call
