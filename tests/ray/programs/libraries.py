"""Ray Serve and Ray Train: two replicas and two workers of half a GPU each, and what each can have of it."""

from __future__ import annotations

import os
from typing import Any

from on_gpu import MIB, look, start, tell
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.v2._internal.constants import is_v2_enabled

import ray
from ray import serve

if is_v2_enabled():  # by newer versions of Ray
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
else:
    from ray.train.data_parallel_trainer import DataParallelTrainer

FITS, TOO_MUCH = (4096 - 600) * MIB, 4097 * MIB

start(num_gpus=2)


@serve.deployment(num_replicas=2, ray_actor_options={"num_gpus": 0.5})
class Replica:
    def __init__(self) -> None:
        self.before = look(FITS)

    async def __call__(self) -> list[dict[str, Any]]:
        return [self.before, look(TOO_MUCH)]


serve.start(proxy_location="Disabled")  # no port
handle = serve.run(Replica.bind(), route_prefix=None)
replicas: dict[int, Any] = {}
while len(replicas) < 2:  # requests go to either of them
    for found in [each.result(timeout_s=100) for each in [handle.remote() for _ in range(4)]]:
        replicas[found[0]["pid"]] = found
tell(replicas=list(replicas.values()))
serve.shutdown()


def train() -> None:
    tell(**{f"rank_{get_context().get_world_rank()}": [look(FITS), look(TOO_MUCH)]})


scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})
DataParallelTrainer(
    train, scaling_config=scaling, run_config=RunConfig(name="halves", storage_path=os.environ["RAY_TMPDIR"])
).fit()
ray.shutdown()
