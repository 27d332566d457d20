"""Keeps samples of what is used, beside the exporter's scrapes."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from vgpurun.errors import HistoryError
from vgpurun.metrics.snapshot import HISTORY, Device, GpuSeen, Reader
from vgpurun.metrics.store import HOUR_S, Mark, Store, Use, Who

_THIN_EVERY_S = 300
_WRONG_S = (
    24 * HOUR_S
)  # a clock that was set by hours may be put right again so soon; only then is it known what is old
_STEERED_S = 1.0  # what a clock is corrected by in little steps between two samples


def count(device: Device, seen: GpuSeen | None, last: Mark, now_s: float, fine_s: int) -> Iterator[Use]:
    """Yield what a tenant has used since the last time, in spans of `fine_s` seconds; after a pause in hours.

    Memory counts as it is now. GPU time is what the tenant's counter says, but no more than there was time. One without
    a compute limit that is alone on its GPU is not measured: it is what NVML says of the GPU, if that can be asked.
    """
    elapsed_s = now_s - last.at_s
    if elapsed_s <= 0 or device.reading is None:
        return
    is_pause = elapsed_s > 3 * fine_s
    used_bytes = device.memory_used_bytes or 0
    gpu_s = min(_since(device.counted_s, last.busy_s), elapsed_s)
    if device.tenant.kind == "slice" and not device.reading.processes and not gpu_s:
        return  # a slice is there all the time: only what runs in it counts
    is_alone = seen is not None and seen.only_user is device
    is_measured = device.quota.sm_percent is not None or gpu_s > 0 or not is_alone
    is_estimated = not is_measured and not is_pause and seen is not None and seen.utilization_ratio is not None
    if is_estimated and seen:
        gpu_s = (seen.utilization_ratio or 0) * elapsed_s
    share = gpu_s / elapsed_s
    span_s = HOUR_S if is_pause else fine_s
    for start_s, ran_s in _pieces(last.at_s, now_s, span_s):
        measured_s, estimated_s = ran_s * is_measured, ran_s * is_estimated
        yield Use(
            start_s, span_s, ran_s, measured_s, estimated_s, share * ran_s, share, used_bytes * ran_s, used_bytes
        )  # fmt: skip


def _since(busy_s: float, before_s: float) -> float:
    """A counter that is lower than it was has begun anew."""
    return busy_s - before_s if busy_s >= before_s else busy_s


def _pieces(begin_s: float, end_s: float, span_s: int) -> Iterator[tuple[int, float]]:
    """Yield the beginnings of the spans that lie between two moments, and how much of each."""
    start_s = int(begin_s // span_s) * span_s
    while start_s < end_s:
        yield start_s, min(end_s, start_s + span_s) - max(begin_s, start_s)
        start_s += span_s


def who_is(device: Device) -> Who:
    """Return under what a device's use is kept."""
    tenant, gpu = device.tenant, device.gpu
    return Who(tenant.id, tenant.name, tenant.user, tenant.kind, gpu.uuid, gpu.number, gpu.name)


class Clock:
    """The time of day, and by how much somebody has set it."""

    def __init__(self, wall: Callable[[], float] = time.time, since_boot: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._since_boot = since_boot or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._offset_s = self._wall() - self._since_boot()

    def now(self) -> tuple[float, float]:
        """Return the seconds since 1970, and by how many of them the clock was set since the last call."""
        now_s = self._wall()
        offset_s = now_s - self._since_boot()
        set_by_s, self._offset_s = offset_s - self._offset_s, offset_s
        return now_s, set_by_s if abs(set_by_s) > _STEERED_S else 0.0


class Recorder:
    """Samples every `sample_s` seconds. What cannot be written is counted at the next sample that can."""

    def __init__(
        self, reader: Reader, say: Callable[[str], None], open_store: Callable[[], Store], sample_s: int
    ) -> None:
        self._reader = reader
        self._say = say
        self._open_store = open_store
        self._sample_s = sample_s
        self._store: Store | None = None
        self._marks: dict[Who, Mark] = {}
        self._sampled_s: float | None = None
        self._thinned_s = 0.0

    def run(self, wait: Callable[[float], bool]) -> None:
        """Sample until `wait`, which takes seconds, says that it is time to end, and then once more."""
        clock = Clock()
        self.sample(*clock.now())
        while not wait(self._sample_s - time.time() % self._sample_s):
            self.sample(*clock.now())
        self.sample(*clock.now())
        if self._store:
            self._store.close()

    def sample(self, now_s: float, set_by_s: float = 0.0) -> None:
        """Add what was used since the last sample; since then the clock was set by so many seconds. Raises nothing."""
        if set_by_s:
            self._follow_clock(set_by_s)
        try:
            store = self._store or self._begin()
            self._add(store, now_s)
            if now_s - self._thinned_s >= _THIN_EVERY_S:
                store.thin(now_s)
                self._thinned_s = now_s
        except HistoryError as error:
            self._reader.note(HISTORY, str(error))
        except Exception as error:  # a mistake of ours ends neither the thread nor in silence
            self._reader.note(HISTORY, f"the history is not written: {type(error).__name__}: {error}")
        else:
            self._reader.note(HISTORY, "")
        self._say_if_moved()

    def _follow_clock(self, set_by_s: float) -> None:
        """Count the time that has passed, and not what the clock was set by."""
        self._marks = {who: replace(mark, at_s=mark.at_s + set_by_s) for who, mark in self._marks.items()}
        self._thinned_s += set_by_s + (_WRONG_S if set_by_s > HOUR_S else 0)
        if self._sampled_s is not None:
            self._sampled_s += set_by_s

    def _begin(self) -> Store:
        store = self._open_store()
        self._store = store
        self._marks = store.marks()
        return store

    def _add(self, store: Store, now_s: float) -> None:
        snapshot = self._reader.look()
        devices = {who_is(each): each for each in snapshot.devices if each.reading is not None}
        gpus = {seen.gpu.uuid: seen for seen in snapshot.gpus}
        uses = [
            (who, use)
            for who, device in devices.items()
            for use in count(device, gpus.get(who.gpu), self._mark_of(who, now_s), now_s, self._sample_s)
        ]
        marks = {who: Mark(device.counted_s, now_s) for who, device in devices.items()}
        store.add(uses, marks)
        self._marks = {who: mark for who, mark in {**self._marks, **marks}.items() if now_s - mark.at_s < 24 * HOUR_S}
        self._sampled_s = now_s

    def _mark_of(self, who: Who, now_s: float) -> Mark:
        """Who is new has begun since the last sample; at the first sample nobody knows when."""
        return self._marks.get(who) or Mark(0.0, now_s if self._sampled_s is None else self._sampled_s)

    def _say_if_moved(self) -> None:
        if self._store and self._store.moved_to:
            self._say(f"warning: the history was broken: it is now {self._store.moved_to}, and a new one begins")
            self._store.moved_to = None
