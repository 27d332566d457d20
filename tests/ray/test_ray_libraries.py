"""Ray Serve and Ray Train: their replicas and workers are actors, and are held to their parts as others."""

from __future__ import annotations

import pytest
from ray_node import NEWEST, OLDEST, TIMEOUT_S, ray_node

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 20), pytest.mark.exhaustive]
HALF_MIB = 4096
OOM = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_replicas_and_workers_have_half_a_gpu_each(version: str) -> None:
    with ray_node(version, "serve,train") as node:
        found, _ = node.run("libraries.py")
    for name, each in (("replicas", found["replicas"]), ("workers", [found["rank_0"], found["rank_1"]])):
        assert [[one["mib"] for one in looks] for looks in each] == [[HALF_MIB] * 2] * 2, name
        assert [[one["had"] for one in looks] for looks in each] == [[True, OOM]] * 2, name
        assert len({looks[0]["pid"] for looks in each}) == 2, name
