"""Tells what Ray's plugin makes of an `image_uri`, then ours of that, and of a plain worker. No cluster is started."""

from __future__ import annotations

import logging
import shlex

from on_gpu import tell
from ray._private.runtime_env import image_uri
from ray._private.runtime_env.context import RuntimeEnvContext
from ray.runtime_env import RuntimeEnv

from vgpurun.ray.job import with_limits
from vgpurun.ray.plugin import LimitsPlugin

logger = logging.getLogger()
context = RuntimeEnvContext(env_vars={"A": "1"})
image_uri._modify_context_impl("the-image", "/worker.py", [], context, logger, "/tmp/ray")
LimitsPlugin().modify_context([], with_limits({"image_uri": "the-image"}), context, logger)
tell(command=shlex.split(context.py_executable), allowed=bool(RuntimeEnv(image_uri="the-image", vgpurun={})))
plain = RuntimeEnvContext()
LimitsPlugin().modify_context([], with_limits({}), plain, logger)
tell(variables=plain.env_vars)
