"""The hook of a node's jobs, which runs in the driver: it gives every job the field `vgpurun`."""

import copy
from collections.abc import MutableMapping
from typing import Any

from vgpurun.ray.containers import allow_fields
from vgpurun.ray.shares import FIELD, HOOK_FIELD, SETUP


def with_limits(runtime_env: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
    """Return a job's runtime_env with limits by num_gpus, unless it says what it wants itself.

    RAY_RUNTIME_ENV_HOOK=vgpurun.ray.job.with_limits makes Ray call it. A node without the plugin ignores the field; the
    setup hook of its workers then refuses tasks with GPUs. A job that has a setup hook keeps its own.
    """
    allow_fields()
    found: MutableMapping[str, Any] = {} if runtime_env is None else copy.copy(runtime_env)
    if found.get(FIELD) is None:
        found[FIELD] = {}
    if found.get(HOOK_FIELD) is None and not (found.get("image_uri") or found.get("container")):
        found[HOOK_FIELD] = SETUP
    return found
