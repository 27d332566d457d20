"""The hook of a node's jobs, which runs in the driver: it gives every job the field `vgpurun`."""

import copy
from collections.abc import MutableMapping
from typing import Any

from vgpurun.ray.containers import allow_field
from vgpurun.ray.shares import FIELD


def with_limits(runtime_env: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
    """Return a job's runtime_env with limits by num_gpus, unless it says what it wants itself.

    RAY_RUNTIME_ENV_HOOK=vgpurun.ray.job.with_limits makes Ray call it.
    """
    allow_field()
    found: MutableMapping[str, Any] = {} if runtime_env is None else copy.copy(runtime_env)
    if found.get(FIELD) is None:
        found[FIELD] = {}
    return found
