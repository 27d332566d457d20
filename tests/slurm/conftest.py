"""A cluster of each release of Slurm for all tests of this folder; each leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slurm_cluster import Cluster, slurm_cluster


class _Clusters(dict[str, Cluster]):
    """The clusters that run, by release: each is started when it is asked for."""

    def __init__(self, running: ExitStack) -> None:
        super().__init__()
        self._running = running

    def __missing__(self, release: str) -> Cluster:
        self[release] = self._running.enter_context(slurm_cluster(release))
        return self[release]


@pytest.fixture(scope="session")
def clusters(built_library: Path) -> Iterator[_Clusters]:
    with ExitStack() as running:
        yield _Clusters(running)


@pytest.fixture(params=[pytest.param("22.05", marks=pytest.mark.exhaustive), "24.11"])
def cluster(request: pytest.FixtureRequest, clusters: _Clusters) -> Iterator[Cluster]:
    found = clusters[request.param]
    yield found
    found.tidy()
