"""A hundred tasks of a tenth of a GPU each, half of them on each GPU."""

from __future__ import annotations

from on_gpu import look, outcome, start, tell, touch, wait_for

import ray

start()
task = ray.remote(look)


def fill(number: int) -> object:
    """Start a task that leaves no tenth of a GPU, until it is told to end."""
    filling = task.options(num_gpus=0.95).remote(0, f"filled-{number}", f"enough-{number}")
    wait_for(f"filled-{number}")
    return filling


def empty(number: int, filling: object) -> object:
    """Let that task end; return what it had."""
    touch(f"enough-{number}")
    return outcome(filling)


# Fifty on each GPU, while the other one is full.
tenth = task.options(num_gpus=0.1)
first, second = fill(1), fill(2)
tell(filling=empty(1, first))
found = [outcome(each) for each in [tenth.remote() for _ in range(50)]]
third = fill(3)
empty(2, second)
found += [outcome(each) for each in [tenth.remote() for _ in range(50)]]
empty(3, third)
tell(hundred=[[each["mib"], each["uuid"]] for each in found])
