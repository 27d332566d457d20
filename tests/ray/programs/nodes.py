"""A cluster of two nodes with a GPU each, one of which is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from on_gpu import MIB, look, outcome, tell, touch, wait_for
from ray.cluster_utils import Cluster

import ray

SIZE = {"num_gpus": 1, "num_cpus": 4, "object_store_memory": 80 * MIB}
cluster = Cluster(
    initialize_head=True,
    head_node_args={
        **SIZE,
        "resources": {"first": 1},
        "include_dashboard": False,
        "env_vars": {"CUDA_VISIBLE_DEVICES": "0"},
    },
)
ray.init(address=cluster.address)  # at the first node, for there is no other yet
second = cluster.add_node(**SIZE, resources={"second": 1}, env_vars={"CUDA_VISIBLE_DEVICES": "1"})


def try_to_find(name: str) -> dict[str, Any]:
    """Wait, at the first try."""
    if not Path(os.environ["RAY_TMPDIR"], name).exists():
        touch(f"{name}-{os.getpid()}")
        touch(name)
        time.sleep(600)
    return look()


task = ray.remote(num_gpus=0.5)(look)
for place in ("first", "second"):
    tell(**{place: outcome(task.options(resources={place: 0.1}).remote())})
tell(spread=ray.get([task.options(num_gpus=1).remote(0, *ends) for ends in (("a", "b"), ("b", "a"))]))

# A task that is at work on the lost node is tried again on the other. A raylet that is killed alone leaves it to
# work on.
full = task.options(num_gpus=1, resources={"first": 0.1}).remote(0, "full", "go-on")
wait_for("full")
lost = ray.remote(num_gpus=0.25, max_retries=2)(try_to_find).remote("begun")
wait_for("begun")
(worker,) = Path(os.environ["RAY_TMPDIR"]).glob("begun-*")
for pid in (second.all_processes["raylet"][0].process.pid, int(worker.name.split("-")[1])):
    os.kill(pid, signal.SIGKILL)
touch("go-on")
tell(full=outcome(full), lost=outcome(lost))
ray.shutdown()
cluster.shutdown()
