"""Keeps samples of what is used, beside the exporter's scrapes."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from vgpurun.errors import HistoryError
from vgpurun.metrics.holding import gpu_time, held, since
from vgpurun.metrics.snapshot import HISTORY, Device, GpuSeen, Reader
from vgpurun.metrics.store import (
    FINE_KEPT_S,
    HOUR_S,
    MIDDLE_KEPT_S,
    MIDDLE_S,
    Mark,
    Recorded,
    Store,
    Use,
    Who,
)

_THIN_EVERY_S = 300  # then other users get a new copy, too
_WRONG_S = (
    24 * HOUR_S
)  # a clock that was set by hours may be put right again so soon; only then is it known what is old
_STEERED_S = 1.0  # corrections in little steps between two samples


def count(device: Device, seen: GpuSeen | None, last: Mark, now_s: float, fine_s: int) -> Iterator[Use]:
    """Yield what a tenant has used since the last time, in spans of `fine_s` seconds, or coarser ones if long ago.

    Memory counts as it is now. After a pause in which nobody looked, the counter of GPU time alone is known: how long
    it ran and what memory it held is not.
    """
    elapsed_s = now_s - last.at_s
    if elapsed_s <= 0 or device.reading is None:
        return
    is_pause = _is_pause(elapsed_s, fine_s)
    used_bytes = 0 if is_pause else device.memory_used_bytes or 0
    if device.tenant.kind == "slice" and not device.reading.processes and not since(device.counted_s, last.busy_s):
        return  # a slice is there all the time: only what runs in it counts
    used = gpu_time(device, seen, last.busy_s, elapsed_s)
    if is_pause and not used.is_measured:
        return
    share = used.seconds / elapsed_s
    for start_s, span_s, piece_s in _pieces(last.at_s, now_s, fine_s):
        sampled_s = 0.0 if is_pause else piece_s
        yield Use(
            start_s, span_s, sampled_s, piece_s * used.is_measured, piece_s * used.is_estimated,
            share * piece_s, share, used_bytes * piece_s, used_bytes, *held(device, used, sampled_s),
        )  # fmt: skip


def recorded(last_s: float, now_s: float, fine_s: int) -> Iterator[Recorded]:
    """Yield the spans since the last sample; a pause was not sampled, but counted by all that outlived it."""
    is_sampled = not _is_pause(now_s - last_s, fine_s)
    for start_s, span_s, piece_s in _pieces(last_s, now_s, fine_s):
        yield Recorded(start_s, span_s, piece_s * is_sampled, piece_s)


def _is_pause(elapsed_s: float, fine_s: int) -> bool:
    return elapsed_s > 3 * fine_s


def _pieces(begin_s: float, end_s: float, fine_s: int) -> Iterator[tuple[int, int, float]]:
    """Yield the spans between two moments, no finer than they are kept: beginning, length, and how much of each."""
    while begin_s < end_s:
        age_s = end_s - begin_s
        span_s = fine_s if age_s <= FINE_KEPT_S else MIDDLE_S if age_s <= MIDDLE_KEPT_S else HOUR_S
        start_s = int(begin_s // span_s) * span_s
        yield start_s, span_s, min(end_s, start_s + span_s) - begin_s
        begin_s = start_s + span_s


def who_is(device: Device) -> Who:
    """Return the key under which a device's use is kept."""
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
    """Samples every `sample_s` seconds. A sample that cannot be written is counted with the next one that can."""

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
            with suppress(HistoryError):
                self._store.publish()
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
                store.publish()
                self._thinned_s = now_s
        except HistoryError as error:
            self._reader.note(HISTORY, str(error))
        except Exception as error:  # a mistake of ours ends neither the thread nor in silence
            self._reader.note(HISTORY, f"the history is not written: {type(error).__name__}: {error}")
        else:
            self._reader.note(HISTORY, "")
        self._say_if_moved()

    def _follow_clock(self, set_by_s: float) -> None:
        """Shift all marks by what the clock was set by, so that only elapsed time counts."""
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
        last_s = self._last_s(devices, now_s)
        uses = [
            (who, use)
            for who, device in devices.items()
            for use in count(
                device, gpus.get(who.gpu), self._mark_of(who, device, last_s, now_s), now_s, self._sample_s
            )
        ]
        marks = {who: Mark(device.counted_s, now_s) for who, device in devices.items()}
        store.add(uses, marks, recorded(last_s, now_s, self._sample_s))
        self._marks = {who: mark for who, mark in {**self._marks, **marks}.items() if now_s - mark.at_s < 24 * HOUR_S}
        self._sampled_s = now_s

    def _last_s(self, found: Iterable[Who], now_s: float) -> float:
        """Return when the last sample was taken, if need be by an earlier exporter, going by tenants that still run."""
        if self._sampled_s is not None:
            return self._sampled_s
        return max((self._marks[who].at_s for who in found if who in self._marks), default=now_s)

    def _mark_of(self, who: Who, device: Device, last_s: float, now_s: float) -> Mark:
        """Return the mark from which a tenant counts: it is new, or was missing from the last sample, or was in it.

        A tenant with more GPU time than has passed since the last sample was there, unseen.
        """
        mark = self._marks.get(who) or Mark(0.0, last_s)
        is_since_last = since(device.counted_s, mark.busy_s) <= now_s - last_s
        return replace(mark, at_s=max(mark.at_s, last_s)) if is_since_last else mark

    def _say_if_moved(self) -> None:
        if self._store and self._store.moved_to:
            self._say(f"warning: the history was broken: it is now {self._store.moved_to}, and a new one begins")
            self._store.moved_to = None
