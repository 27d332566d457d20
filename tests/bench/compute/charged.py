"""What a program is charged while it is measured: that tells whether the limit or its price is off."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from pathlib import Path
from threading import Event, Thread

from runs import ROOT

sys.path.insert(0, str(ROOT))
from vgpurun.limits import region

LOOK_S = 0.02


class Charged:
    """Reads what the one container with its state in a folder is charged on a GPU, as long as the `with` lasts."""

    def __init__(self, folder: Path, uuid: str) -> None:
        self._folder, self._uuid = folder, uuid
        self._at_s: list[float] = []
        self._busy_s: list[float] = []
        self._ended = Event()
        self._thread = Thread(target=self._look)

    def __enter__(self) -> Charged:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for usage in self._folder.rglob("usage"):
                for reading in region.read_usage(usage, [self._uuid]) or ():
                    self._at_s.append(time.monotonic())
                    self._busy_s.append(reading.busy_ns / 1e9)

    def percent(self, from_s: float, to_s: float) -> float | None:
        """Of the time between two instants of CLOCK_MONOTONIC; None where it was not seen."""
        first, last = (bisect_left(self._at_s, at_s) for at_s in (from_s, to_s))
        last = min(last, len(self._at_s) - 1)  # a program ends when it has measured itself, and its folder with it
        if not 0 < first < last:
            return None
        return 100 * (self._busy_s[last] - self._busy_s[first]) / (self._at_s[last] - self._at_s[first])
