"""The activity of each process over time: a lane for each of its streams, threads and directions of copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from vgpurun.profiles.model import Call, CopyKind, GateWait, GpuSpan
from vgpurun.profiles.series import Amounts, Axis

Kind = Literal["gpu", "wait", "copy", "call"]
KINDS: Sequence[Kind] = ("gpu", "wait", "copy", "call")  # from the top of a process's lanes

DIRECTIONS = {
    CopyKind.HOST_TO_HOST: "host to host",
    CopyKind.HOST_TO_DEVICE: "host to device",
    CopyKind.DEVICE_TO_HOST: "device to host",
    CopyKind.DEVICE_TO_DEVICE: "device to device",
    CopyKind.BY_POINTERS: "by address",
}

_COPIES = {
    CopyKind.HOST_TO_HOST: "copies on host",
    CopyKind.HOST_TO_DEVICE: "copies to device",
    CopyKind.DEVICE_TO_HOST: "copies to host",
    CopyKind.DEVICE_TO_DEVICE: "copies on device",
    CopyKind.BY_POINTERS: "copies by address",
}

_MOST_OF_A_KIND = 3  # lanes of a process: the busiest have their own, others share one
_MOST_TRACKED = 64


@dataclass(frozen=True)
class Lane:
    """A lane: `parts` is the part of each bin in which it was busy."""

    process: int  # index into Summary.processes
    kind: Kind
    title: str
    total_ns: float
    parts: Sequence[float]


class Lanes:
    """Collects lanes while records are read."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._found: dict[tuple[int, Kind], dict[tuple[int, int], Amounts]] = defaultdict(dict)

    def call(self, process: int, call: Call) -> None:
        """Add a call that is no copy."""
        self._add(process, "call", (call.thread, 0), call.start_ns, call.duration_ns)

    def copy(self, process: int, call: Call) -> None:
        """Add a copy."""
        assert call.kind is not None
        self._add(process, "copy", (call.kind.value, 0), call.start_ns, call.duration_ns)

    def span(self, process: int, device: int, span: GpuSpan) -> None:
        """Add a time in which a stream kept a device busy; the device's number is that of the summary."""
        self._add(process, "gpu", (device, span.stream), span.start_ns, span.duration_ns)

    def wait(self, process: int, wait: GateWait) -> None:
        """Add a wait."""
        self._add(process, "wait", (0, 0), wait.start_ns, wait.duration_ns)

    def _add(self, process: int, kind: Kind, key: tuple[int, int], start_ns: int, duration_ns: int) -> None:
        lanes = self._found[process, kind]
        lane = lanes.get(key)
        if lane is None:  # too many: the latest share a lane
            lane = next(reversed(lanes.values())) if len(lanes) >= _MOST_TRACKED else Amounts(self._axis)
            if len(lanes) < _MOST_TRACKED:
                lanes[key] = lane
        lane.add(start_ns, duration_ns, duration_ns)

    def all(self) -> list[Lane]:
        """Return the lanes by process and kind."""
        order = sorted(self._found, key=lambda key: (key[0], KINDS.index(key[1])))
        return [lane for process, kind in order for lane in self._of(process, kind)]

    def _of(self, process: int, kind: Kind) -> list[Lane]:
        lanes = self._found[process, kind]
        if kind == "wait":
            return [_lane(process, kind, "throttled", list(lanes.values()))]
        if kind == "copy":
            return [
                _lane(process, kind, _COPIES[CopyKind(value)], [amounts])
                for (value, _), amounts in sorted(lanes.items())
            ]
        busiest = sorted(lanes, key=lambda key: -lanes[key].total)
        own, others = busiest[:_MOST_OF_A_KIND], busiest[_MOST_OF_A_KIND:]
        if len(others) == 1:
            own, others = busiest, []
        own.sort(key=lambda key: (key[0], list(lanes).index(key)))
        found = [_lane(process, kind, _title(kind, key, list(lanes)), [lanes[key]]) for key in own]
        if others:
            name = "streams" if kind == "gpu" else "threads"
            title = f"{len(others)} more {name}" if len(lanes) < _MOST_TRACKED else f"other {name}"
            found.append(_lane(process, kind, title, [lanes[key] for key in others]))
        return found


def stream_name(stream: int, seen: Iterable[int]) -> str:
    """Return a stream's name among those of its process that have worked, in the order in which they began to."""
    return f"stream {list(dict.fromkeys(filter(None, seen))).index(stream) + 1}" if stream else "default stream"


def _title(kind: Kind, key: tuple[int, int], keys: Sequence[tuple[int, int]]) -> str:
    number, stream = key
    if kind == "call":
        return "API calls" if len(keys) == 1 else f"thread {number}"
    of_device = [each for each in keys if each[0] == number]
    return f"GPU {number}" if len(of_device) == 1 else f"GPU {number}, {stream_name(stream, [of for _, of in keys])}"


def _lane(process: int, kind: Kind, title: str, amounts: Sequence[Amounts]) -> Lane:
    parts = [min(1.0, sum(each)) for each in zip(*(one.parts() for one in amounts), strict=True)]
    return Lane(process, kind, title, sum(one.total for one in amounts), parts)
