"""A history of the metrics, in a folder that is not there yet; vgpurun as a user starts it; cgroups; no engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cgroup_maker import cgroups
from guard_world import NO_SLICES, World
from histories import DAY_S

from support import command_line
from support.second_user import public_folder
from vgpurun.guard.outside_slices import Slices
from vgpurun.host.freezer import Cgroup
from vgpurun.metrics.store import Store


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "lab" / "history.sqlite"


@pytest.fixture
def open_store(history: Path) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def open_it(keep_s: int = 400 * DAY_S, max_bytes: int = 1 << 28) -> Store:
        opened.append(Store(history, keep_s, max_bytes))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can pass to, which tmp_path is not."""
    with public_folder() as made:
        yield made


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    unwanted = ("CUDA_", "VGPU", "NVIDIA_", "LD_PRELOAD", "DOCKER_", "LIBCUDA_", "WRAPPER_", "ALNAIR_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {
        "VGPURUN_STATE_DIR": str(tmp_path / "state"),
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock",
        "COLUMNS": "100",
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return command_line.run(arguments, environment | variables)

    return run


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Makes a host with a guard that runs, configured so."""
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))

    def make(slices: Slices = NO_SLICES, **settings: Any) -> World:
        return World(tmp_path, settings, slices).start()

    return make


@pytest.fixture(params=["v1", "v2"])
def make_cgroup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Cgroup]]:
    with cgroups(request.param, tmp_path) as make:
        yield make
