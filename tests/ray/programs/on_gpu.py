"""For drivers: a cluster of one node, what a task finds of its GPU, and how a driver tells the test what it found."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

MIB = 1 << 20


def start(num_gpus: int = 2, **options: Any) -> None:
    """Start a cluster of this process's own; it ends with it."""
    ray.init("local", num_gpus=num_gpus, num_cpus=8, include_dashboard=False, object_store_memory=80 * MIB, **options)


def tell(**values: Any) -> None:
    """In a file: what Ray prints of its workers may come in the middle of a line."""
    with Path(os.environ["RAY_TMPDIR"], "found").open("a") as found:
        found.write(json.dumps(values) + "\n")


def outcome(reference: Any) -> Any:
    """Return what a task returns, or the name of its error and the words."""
    try:
        return ray.get(reference, timeout=200)
    except ray.exceptions.RayError as error:
        return [type(error).__name__, str(error)]


def look(tries_bytes: int = 0, arrived: str = "", awaited: str = "") -> dict[str, Any]:
    """Return what this process finds on its first GPU, by CUDA; `tries_bytes`: whether it can have that much.

    It says that it has `arrived`, and goes on when another that is `awaited` has.
    """
    from cuda_driver import CudaError, Driver

    driver = Driver()
    try:
        driver.start()
    except CudaError as error:
        return {"error": error.name, "pid": os.getpid()}
    found = {"mib": driver.mem_get_info()[1] // MIB, "uuid": driver.device_uuid(), "pid": os.getpid()}
    if tries_bytes:
        try:
            driver.mem_free(driver.mem_alloc(tries_bytes))
            found["had"] = True
        except CudaError as error:
            found["had"] = error.name
    if awaited:
        touch(arrived)
        wait_for(awaited)
    return found


def wait_for(*names: str, tasks: Sequence[Any] = ()) -> None:
    """Wait until these files are in the cluster's folder; raises the error of a task that fails before that."""
    while not all(Path(os.environ["RAY_TMPDIR"], name).exists() for name in names):
        if tasks:
            ray.get(ray.wait(tasks, timeout=0)[0])
        time.sleep(0.02)


def touch(name: str) -> str:
    Path(os.environ["RAY_TMPDIR"], name).touch()
    return name


def work(start_at_s: float, seconds: float) -> tuple[float, int]:
    """Launch kernels of 2 ms, and return which part of the time they had the GPU, and the GPU's size in MiB."""
    from cuda_driver import Driver

    driver = Driver.started()
    kernel = driver.kernel("spin_2ms")
    driver.launch(kernel)
    driver.synchronize()
    time.sleep(max(0.0, start_at_s - time.time()))
    began_s, count = time.monotonic(), 0
    while time.monotonic() < began_s + seconds:
        driver.launch(kernel)
        count += 1
    driver.synchronize()
    return count * 2e-3 / (time.monotonic() - began_s), driver.mem_get_info()[1] // MIB


def shares_at_once(fractions: Sequence[float], seconds: float = 1.5) -> list[tuple[float, int]]:
    """Have tasks with these parts of GPUs work at once, and return what each had."""
    task = ray.remote(work)
    begin_s = time.time() + 3
    return ray.get([task.options(num_gpus=each).remote(begin_s, seconds) for each in fractions])
