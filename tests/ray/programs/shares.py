"""Tasks with a half, a quarter and all of a GPU, at once."""

from __future__ import annotations

from on_gpu import shares_at_once, start, tell

EXPECTED = (0.5, 0.25, 1)
start()
trials: list[list[float]] = []
while len(trials) < 4:  # a busy machine holds a task up now and then
    trials.append(shares_at_once(EXPECTED))
    if all(abs(had - want) < 0.02 for had, want in zip(trials[-1], EXPECTED, strict=True)):
        break
tell(trials=trials)
