"""A job with a wish and a setup hook of its own, and what goes wrong in it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from on_gpu import look, outcome, start, tell, touch, wait_for

import ray
from vgpurun.inventory.reservations import local_processes
from vgpurun.limits.limits_file import read_limits
from vgpurun.storage import tenants

CONTAINERS = Path(os.environ["VGPURUN_STATE_DIR"]) / "containers"


def own_hook() -> None:
    os.environ["OWN_HOOK"] = "has run"


WISH = {"mem": "1g", "sm": 10, "sm_policy": "burst", "priority": "low"}
start(runtime_env={"worker_process_setup_hook": own_hook, "vgpurun": WISH})


def nothing() -> None:
    pass


@ray.remote(num_gpus=0.5, max_retries=0)
def limits() -> list[Any]:
    found = read_limits(Path(os.environ["VGPURUN_LIMITS_FILE"]))
    assert found is not None
    quotas = [(each.sm_policy.name, each.priority.name, each.memory_bytes, each.sm_percent) for _, each in found]
    return [os.environ.get("OWN_HOOK"), quotas]


@ray.remote(num_gpus=0.5)
class Actor:
    def limits(self) -> None:
        """Not called."""


@ray.remote(num_gpus=0.5, max_retries=0)
def hold() -> dict[str, Any]:
    return look(0, "held", "let-go")


tell(wish=outcome(limits.remote()))
tell(too_small=outcome(limits.options(num_gpus=0.001).remote()))
actor = Actor.options(num_gpus=0.001).remote()
tell(too_small_actor=outcome(actor.limits.remote()))
tell(after_refusal=outcome(limits.remote())[1][0][2:])
tell(unknown=outcome(limits.options(runtime_env={"vgpurun": {"memory": 1}}).remote()))

held = hold.remote()
wait_for("held")
holders = list(local_processes())
tell(holders=[[int(each.id), each.what, [(quota.memory_bytes, quota.sm_percent) for _, quota in each.quotas]]
              for each in holders if each.quotas])  # fmt: skip
touch("let-go")
pid = outcome(held)["pid"]
tell(held_by=pid)

task = ray.remote(look)
worker = outcome(task.options(num_gpus=0.5).remote())["pid"]
(folder,) = [each.folder for each in local_processes() if each.id == str(worker)]
os.kill(worker, signal.SIGKILL)
deadline_s = time.monotonic() + 30
while folder.exists() and time.monotonic() < deadline_s:  # the next worker that starts removes it
    outcome(ray.remote(max_calls=1)(nothing).remote())
tell(is_left=folder.exists() or tenants.folder_of(folder).exists())
