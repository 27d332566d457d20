"""A driver that begins with a line of docs/ray.md (its first argument), and has tasks with the num_gpus that follow."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from on_gpu import look, outcome, tell

import ray

line, *fractions = sys.argv[1:]
exec(line, {"ray": ray})


def limits() -> list[Any]:
    """Return the limits that this worker is under, where Ray's Python has vgpurun."""
    if find_spec("vgpurun") is None:
        return []
    from vgpurun.limits.limits_file import read_limits

    found = read_limits(Path(os.environ["VGPURUN_LIMITS_FILE"])) or []
    return [[quota.memory_bytes, quota.sm_percent, quota.sm_policy.name, quota.priority.name] for _, quota in found]


def looks() -> dict[str, Any]:
    return {**look(), "limits": limits()}


for each in fractions:
    tell(**{each: outcome(ray.remote(num_gpus=float(each), max_retries=0)(looks).remote())})
ray.shutdown()
