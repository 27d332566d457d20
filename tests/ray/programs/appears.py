"""A job on a node that lacks the library, which then appears there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from on_gpu import look, outcome, start, tell

import ray

start()
task = ray.remote(num_gpus=0.5, max_retries=0)(look)
tell(without=outcome(task.remote()))
Path(os.environ["VGPURUN_LIBRARY"]).symlink_to("libvgpu.so")
deadline_s = time.monotonic() + 100
while isinstance(found := outcome(task.remote()), list) and time.monotonic() < deadline_s:
    time.sleep(1)
tell(**{"with": found})
