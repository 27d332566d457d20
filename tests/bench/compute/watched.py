"""A program's charges while it is measured, how busy its GPU is by its own counter, and how fast that is clocked.

That tells of a share that is off whether the limit is, or its price, or the GPU itself: less work at a time lets it run
at a higher clock.
"""

from __future__ import annotations

import statistics
import sys
import time
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pynvml
from runs import ROOT

sys.path.insert(0, str(ROOT))
from vgpurun.limits import usage_file

LOOK_S = 0.02
SAMPLE_S = 0.2  # of the driver's utilization samples, of which it keeps some dozens
ROUNDED_BY = 0.5  # percent, on the average: they are rounded down


class Watched:
    """Looks at a GPU, and at the one container with its state in a folder, as long as the `with` lasts."""

    def __init__(self, folder: Path, uuid: str) -> None:
        self._folder, self._uuid = folder, uuid
        self._at_s: list[float] = []
        self._busy_s: list[float] = []
        self._clock_mhz: list[int] = []
        self._samples: dict[float, int] = {}  # percent of the time in which the GPU computed, by their ends
        self._sampled_s = time.monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._look)

    def __enter__(self) -> Watched:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        pynvml.nvmlShutdown()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._take_samples()
            for usage in self._folder.rglob("usage"):
                for reading in usage_file.read_usage(usage, [self._uuid]) or ():
                    self._at_s.append(time.monotonic())
                    self._busy_s.append(reading.busy_ns / 1e9)
                    self._clock_mhz.append(self._clock_now_mhz())

    def _take_samples(self) -> None:
        """The driver counts by the other clock, in microseconds."""
        ahead_s = time.time() - time.monotonic()
        if time.monotonic() < self._sampled_s + SAMPLE_S:
            return
        with suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_NotSupported):  # none since, or none at all
            _, samples = pynvml.nvmlDeviceGetSamples(
                self._gpu, pynvml.NVML_GPU_UTILIZATION_SAMPLES, round(1e6 * (self._sampled_s + ahead_s))
            )
            self._sampled_s = time.monotonic()
            self._samples |= {each.timeStamp / 1e6 - ahead_s: each.sampleValue.uiVal for each in samples}

    def _clock_now_mhz(self) -> int:
        """0 where the driver does not say, as the simulated one."""
        try:
            return int(pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_SM))
        except pynvml.NVMLError_NotSupported:
            return 0

    def _between(self, from_s: float, to_s: float) -> tuple[int, int] | None:
        first, last = (bisect_left(self._at_s, at_s) for at_s in (from_s, to_s))
        last = min(last, len(self._at_s) - 1)  # a program ends when it has measured itself, and its folder with it
        return (first, last) if 0 < first < last else None

    def charged_percent(self, from_s: float, to_s: float) -> float | None:
        """The share charged between two instants of CLOCK_MONOTONIC; None where it was not seen."""
        if (found := self._between(from_s, to_s)) is None:
            return None
        first, last = found
        return 100 * (self._busy_s[last] - self._busy_s[first]) / (self._at_s[last] - self._at_s[first])

    def gpu_percent(self, from_s: float, to_s: float) -> float | None:
        """The part of the time in which the GPU computed for anybody, by its own counter; None where it has none."""
        known = [percent for at_s, percent in self._samples.items() if from_s + SAMPLE_S <= at_s <= to_s]
        return statistics.fmean(known) + ROUNDED_BY if known else None

    def clock_mhz(self, from_s: float, to_s: float) -> float:
        """The mean clock of the multiprocessors between two such instants; 0 where it was not seen."""
        found = self._between(from_s, to_s)
        return statistics.fmean(self._clock_mhz[slice(*found)]) if found else 0.0
