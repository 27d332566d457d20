"""Tasks with parts of GPUs at once: NUM_GPUS of the node, then for each task its num_gpus and what it should have."""

from __future__ import annotations

import sys

from on_gpu import shares_at_once, start, tell

num_gpus, *pairs = map(float, sys.argv[1:])
fractions, expected = pairs[::2], pairs[1::2]
start(int(num_gpus))
trials: list[list[tuple[float, int]]] = []
while len(trials) < 4:  # a busy machine holds a task up now and then
    trials.append(shares_at_once(fractions))
    if all(abs(had - want) < 0.02 for (had, _), want in zip(trials[-1], expected, strict=True)):
        break
tell(trials=trials)
