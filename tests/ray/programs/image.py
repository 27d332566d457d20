"""Tasks and an actor whose workers are in containers of an image, beside one that is in none."""

from __future__ import annotations

from pathlib import Path

from on_gpu import MIB, look, outcome, start, tell

import ray

start(num_gpus=2)
in_image = {"image_uri": "vgpurun-test"}


def looks(tries_bytes: int) -> list[object]:
    return [Path("/run/.containerenv").exists(), look(tries_bytes)]


task = ray.remote(max_retries=0)(looks)
half = task.options(num_gpus=0.5, runtime_env=in_image)
tell(fits=outcome(half.remote((4096 - 600) * MIB)), more=outcome(half.remote(4097 * MIB)))
tell(quarter=outcome(task.options(num_gpus=0.25, runtime_env=in_image).remote((2048 - 600) * MIB)))
tell(beside=outcome(task.options(num_gpus=0.25).remote((2048 - 600) * MIB)))
tell(none=outcome(task.options(num_gpus=0, runtime_env=in_image).remote(0)))


@ray.remote(num_gpus=0.25, runtime_env=in_image)
class Actor:
    def look(self) -> list[object]:
        return looks((2048 - 600) * MIB)


actor = Actor.remote()
tell(actor=outcome(actor.look.remote()))
ray.shutdown()
