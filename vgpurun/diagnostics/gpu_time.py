"""The GPU time of a trial's processes, by the library's account and by the GPU's own records, side by side."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vgpurun.errors import ChannelError
from vgpurun.host.gpu_records import GpuTimes
from vgpurun.util.threads import Helper

_INTERVAL_S = 0.1  # at which both are read; each process of a trial works for longer
_MOST_S = 0.02  # between the two readings of a sample: what a busy host has held up says nothing
_LEAST_S = 0.3  # of work in which they can be compared


class Sample(NamedTuple):
    """Both accounts at one moment."""

    at_s: float
    library_ns: int
    gpu_ns: int


class Shares(NamedTuple):
    """The percentage of a GPU's time that processes had while they worked, by each account, and how long that was."""

    library_percent: float
    gpu_percent: float
    seconds: float


class Watch:
    """Reads both accounts in a thread, as long as it is entered. `trouble` says why there is nothing more to compare.

    `is_own` tells whether a process is of the trial, and `library_ns` what the library has counted for those; None
    where that is not known yet. Both are asked in the thread, and raise nothing.
    """

    def __init__(
        self,
        times: GpuTimes,
        uuid: str,
        is_own: Callable[[int], bool | None],
        library_ns: Callable[[], int | None],
    ) -> None:
        self.trouble = ""
        self._times = times
        self._uuid = uuid
        self._is_own = is_own
        self._library_ns = library_ns
        self._had_ns: Counter[int] = Counter()
        self._own: dict[int, bool | None] = {}
        self.samples: list[Sample] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = Helper(self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()  # the records may be another watch's next

    def shares(self) -> Shares | None:
        """Return the shares since the last call, None where there was not enough work to tell."""
        with self._lock:
            samples, self.samples = self.samples, []
        return shares_in(samples)

    def _run(self) -> None:
        try:
            while not self._ended.wait(_INTERVAL_S):
                self._look()
        except ChannelError as error:
            self.trouble = str(error)

    def _look(self) -> None:
        began_s = time.monotonic()
        for pid, had_ns in self._times.read(self._uuid):
            self._had_ns[pid] += had_ns
        library_ns = self._library_ns()
        at_s = time.monotonic()
        for pid in self._had_ns:
            if self._own.get(pid) is None:
                self._own[pid] = self._is_own(pid)
        if library_ns is not None and at_s - began_s < _MOST_S:
            gpu_ns = sum(had_ns for pid, had_ns in self._had_ns.items() if self._own[pid])
            with self._lock:
                self.samples.append(Sample(at_s, library_ns, gpu_ns))


def shares_in(samples: Sequence[Sample]) -> Shares | None:
    """Return the shares from the first work in these samples to the last.

    A context that is alone stays on its GPU before its work and after that, so both ends are within the work. The first
    of it may have been charged late, and be that of the processes before.
    """
    changes = [
        number for number in range(1, len(samples)) if samples[number].library_ns > samples[number - 1].library_ns
    ]
    if len(changes) < 3:
        return None
    first, last = samples[changes[1]], samples[changes[-1] - 1]
    seconds = last.at_s - first.at_s
    if seconds < _LEAST_S:
        return None
    had_ns = last.library_ns - first.library_ns, last.gpu_ns - first.gpu_ns
    library_percent, gpu_percent = (100 * each / seconds / 1e9 for each in had_ns)
    return Shares(library_percent, gpu_percent, seconds)
