"""A job of a task with half a GPU and one without. Arguments are the fields of its runtime_env, as NAME=VALUE."""

from __future__ import annotations

import sys

from on_gpu import look, outcome, start, tell

import ray


def nothing() -> None:
    pass


start(runtime_env=dict(each.split("=", 1) for each in sys.argv[1:]))
tell(found=outcome(ray.remote(num_gpus=0.5, max_retries=0)(look).remote()))
tell(without_gpu=outcome(ray.remote(nothing).remote()))
