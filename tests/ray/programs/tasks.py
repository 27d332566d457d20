"""Tasks, actors, placement groups and children of tasks, one after the other, on two GPUs of 8 GiB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from on_gpu import MIB, look, outcome, start, tell
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import ray

start()
task = ray.remote(look)
for fraction, mib in ((0.5, 4096), (0.25, 2048), (1, 8192)):
    tell(**{f"task_{fraction}": outcome(task.options(num_gpus=fraction).remote((mib - 600) * MIB))})
tell(more=outcome(task.options(num_gpus=0.25).remote(2049 * MIB)))
tell(none=outcome(task.options(num_gpus=0).remote()))

# Two tasks at once leave two idle workers, on a GPU each. The next task takes either of them.
for name, fraction in (("first", 1), ("second", 0.75)):
    both = task.options(num_gpus=fraction)
    ends = (f"{name}-a", f"{name}-b")
    tell(**{name: ray.get([both.remote(0, *ends), both.remote(0, *reversed(ends))])})

group = placement_group([{"GPU": 0.5, "CPU": 1}, {"GPU": 1, "CPU": 1}])
ray.get(group.ready())
for index, fraction in ((0, 0.5), (1, 0.5), (-1, 0.25)):
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    tell(**{f"group_{index}": outcome(task.options(num_gpus=fraction, scheduling_strategy=place).remote())})
remove_placement_group(group)


@ray.remote(num_gpus=0.25)
class Actor:
    def look(self) -> object:
        return look()


actor = Actor.remote()
tell(actor=[outcome(actor.look.remote()) for _ in range(2)])
ray.kill(actor)


@ray.remote(num_gpus=0.25)
def parent() -> object:
    code = "import json, on_gpu; print(json.dumps(on_gpu.look()))"
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"}
    return json.loads(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).stdout)


@ray.remote(num_gpus=0.5)
def outer() -> object:
    return [look(), ray.get(task.options(num_gpus=0.25).remote())]


tell(child=outcome(parent.remote()), nested=outcome(outer.remote()))
