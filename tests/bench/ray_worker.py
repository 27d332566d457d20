"""Measures what limits add to the start of a Ray worker: the import and the set-up that run in it, in milliseconds.

    python tests/bench/ray_worker.py [COUNT]

It needs Ray (`pip install 'vgpurun[ray]'`) and a GPU, or VGPURUN_DRIVER=sim. No cluster is started: a process does what
a worker does at that point, COUNT times, with Ray imported before.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import tempfile

from ray._private.runtime_env.context import RuntimeEnvContext

from vgpurun.ray.plugin import LimitsPlugin
from vgpurun.ray.shares import FIELD

COUNT = 15
AIM_MS = 20
WORKER = """
import os, time
import ray._private.utils, ray._private.worker
began = time.perf_counter()
from vgpurun.ray.worker import setup
setup()
print((time.perf_counter() - began) * 1000, flush=True)
os._exit(0)
"""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with tempfile.TemporaryDirectory() as state:
        os.environ["VGPURUN_STATE_DIR"] = state
        context = RuntimeEnvContext()
        LimitsPlugin().modify_context([], {FIELD: {}}, context, logging.getLogger())
        command = [sys.executable, "-c", WORKER]
        environment = os.environ | context.env_vars | {"PYTHONDONTWRITEBYTECODE": ""}  # files are compiled once
        subprocess.run(command, env=environment, check=True, capture_output=True)
        took_ms = sorted(float(subprocess.check_output(command, env=environment)) for _ in range(count))
    print(f"{statistics.median(took_ms):.1f} ms ({took_ms[0]:.1f} to {took_ms[-1]:.1f}); the aim is {AIM_MS}")


if __name__ == "__main__":
    main()
