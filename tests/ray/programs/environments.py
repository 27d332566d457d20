"""Tasks in conda environments: one that is there, and one that Ray has made."""

from __future__ import annotations

import sys
from typing import Any

from on_gpu import MIB, look, outcome, start, tell

import ray

start(num_gpus=1)


@ray.remote(num_gpus=0.5, max_retries=0)
def looks() -> list[Any]:
    import vgpurun

    return [sys.prefix, vgpurun.__file__, look((4096 - 600) * MIB)]


for name, conda in (("named", "lab"), ("made", {"dependencies": ["pip"]})):
    tell(**{name: outcome(looks.options(runtime_env={"conda": conda}).remote())})
ray.shutdown()
