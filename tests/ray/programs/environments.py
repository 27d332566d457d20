"""Tasks in environments of their own: the argument has a runtime_env by each one's name, as JSON."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

from on_gpu import MIB, look, outcome, start, tell

import ray

start(num_gpus=1)


@ray.remote(num_gpus=0.5)
def looks() -> dict[str, Any]:
    import vgpurun

    fits, more = look((4096 - 600) * MIB), look(4096 * MIB)
    found = {"prefix": sys.prefix, "vgpurun": vgpurun.__file__, "has_lab_tool": find_spec("lab_tool") is not None}
    return {**found, "mib": fits["mib"], "had": [fits["had"], more["had"]]}


for name, environment in json.loads(sys.argv[1]).items():
    tell(**{name: outcome(looks.options(runtime_env=environment).remote())})
ray.shutdown()
