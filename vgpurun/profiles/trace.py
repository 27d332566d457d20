"""A run in the Trace Event Format, which Perfetto and chrome://tracing open.

Instants and durations are microseconds, from the run's beginning; fractions keep the nanoseconds. The file is written
record by record, so that a long run needs no more memory than a short one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TextIO

from vgpurun.profiles.lanes import DIRECTIONS, stream_name
from vgpurun.profiles.model import Call, CopyKind
from vgpurun.profiles.names import api_name
from vgpurun.profiles.reader import FileProfile
from vgpurun.profiles.summary import is_synchronous
from vgpurun.profiles.words import short_command

Event = dict[str, Any]

# Tracks that are no threads have thread numbers past the kernel's highest.
_FIRST_TRACK = 1 << 23
_COPY_TRACK = _FIRST_TRACK
_WAIT_TRACK = _FIRST_TRACK + 0x100
_STREAM_TRACK = _FIRST_TRACK + 0x1000
# The counters of GPUs have a process of their own, past the kernel's highest number.
_DEVICE_PROCESS = _FIRST_TRACK
_RATE_NS = 50_000_000  # a share over a shorter time says little


def write(profiles: Sequence[FileProfile], file: TextIO) -> int:
    """Write all records as JSON. Returns how many events there are."""
    # Letters as they are: Perfetto refuses a whole trace for an escaped one that takes two escapes.
    encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode
    begin_ns = min(profile.started_ns for profile in profiles)
    file.write('{"displayTimeUnit":"ns","otherData":{"begin_ns":' + f'"{begin_ns}"' + '},"traceEvents":[')
    written = 0
    for event in events(profiles):
        if "ts" in event:
            event["ts"] = _us(event["ts"] - begin_ns)
        file.write((",\n" if written else "\n") + encode(event))
        written += 1
    file.write("\n]}\n")
    return written


def events(profiles: Sequence[FileProfile]) -> Iterator[Event]:
    """Yield all events; `ts` is in nanoseconds since the epoch here."""
    uuids: dict[str, int] = {}
    for profile in profiles:
        for uuid in profile.devices:
            uuids.setdefault(uuid, len(uuids))
    for order, (profile, pid) in enumerate(zip(profiles, _distinct_pids(profiles), strict=True)):
        numbers = [uuids[uuid] for uuid in profile.devices]
        yield _name("process_name", pid, 0, f"{short_command(profile.command)} [{profile.pid}]")
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": order}}
        yield from _nested(_calls(profile, pid))
        yield from _nested(_spans(profile, pid, numbers))
        yield from _nested(_waits(profile, pid, numbers))
    yield from _counters(profiles, uuids)


def _distinct_pids(profiles: Sequence[FileProfile]) -> Iterator[int]:
    """Containers have process numbers of their own, and the kernel uses numbers again: tell such processes apart."""
    used: set[int] = set()
    for profile in profiles:
        pid = next(pid for pid in count(profile.pid, 1 << 24) if pid not in used)
        used.add(pid)
        yield pid


def _calls(profile: FileProfile, pid: int) -> Iterator[Event]:
    named: set[int] = set()
    for call in profile.calls():
        if call.thread not in named:
            named.add(call.thread)
            yield _name("thread_name", pid, call.thread, f"API calls, thread {call.thread}")
        arguments: Event = {"bytes": call.size_bytes} if call.size_bytes else {}
        if call.stream:
            arguments["stream"] = f"{call.stream:#x}"
        yield _complete(pid, call.thread, api_name(call.api), "api", call.start_ns, call.duration_ns, arguments)
        if call.kind is not None:
            track = _COPY_TRACK + call.kind.value
            if track not in named:
                named.add(track)
                yield _name("thread_name", pid, track, f"copies {DIRECTIONS[call.kind]}")
            yield _copy(pid, track, call, call.kind)


def _copy(pid: int, track: int, call: Call, kind: CopyKind) -> Event:
    arguments: Event = {"bytes": call.size_bytes, "kind": kind.value, "api": api_name(call.api)}
    if is_synchronous(call) and call.duration_ns:
        arguments["bytes_per_s"] = round(call.size_bytes / call.duration_ns * 1e9)
    return _complete(pid, track, DIRECTIONS[kind], "copy", call.start_ns, call.duration_ns, arguments)


def _spans(profile: FileProfile, pid: int, numbers: Sequence[int]) -> Iterator[Event]:
    tracks: dict[tuple[int, int], int] = {}
    for span in profile.spans():
        key = span.device, span.stream
        if key not in tracks:
            tracks[key] = _STREAM_TRACK + len(tracks)
            stream = stream_name(span.stream, [stream for _, stream in tracks])
            name = f"{_gpu(numbers, span.device)}, {stream} ({span.stream:#x})"
            yield _name("thread_name", pid, tracks[key], name)
        name = "1 launch" if span.launches == 1 else f"{span.launches} launches"
        arguments = {"launches": span.launches, "own_us": _us(span.own_ns)}
        yield _complete(pid, tracks[key], name, "gpu", span.start_ns, span.duration_ns, arguments)


def _waits(profile: FileProfile, pid: int, numbers: Sequence[int]) -> Iterator[Event]:
    tracks: dict[int, int] = {}
    for wait in profile.waits():
        if wait.thread not in tracks:
            tracks[wait.thread] = _WAIT_TRACK + len(tracks)
            yield _name("thread_name", pid, tracks[wait.thread], f"throttled, thread {wait.thread}")
        arguments = {"of": _gpu(numbers, wait.device)}
        yield _complete(pid, tracks[wait.thread], "wait", "gate", wait.start_ns, wait.duration_ns, arguments)


def _gpu(numbers: Sequence[int], device: int) -> str:
    return f"GPU {numbers[device]}" if device >= 0 else "GPU not known"


def _nested(all_events: Iterable[Event]) -> Iterator[Event]:
    """Let complete events of a track be apart or within each other, as viewers want them.

    Instants of the GPU's clock are placed on the host's within microseconds: an event that would begin within the one
    before it, and end after it, begins at its end. Events come in the order of their ends or of their begins.
    """
    open_until: dict[int, list[int]] = {}  # by track: the ends of what the latest event is within
    begins: dict[int, int] = {}
    for event in all_events:
        if event["ph"] == "X":
            track, begin, end = event["tid"], event["ts"], event["ts"] + event["dur"]
            before, ends = begins.get(track, 0), open_until.setdefault(track, [])
            if begin < before < end:
                begin = before
            while ends and (ends[-1] <= begin or ends[-1] < end):
                begin = max(begin, ends.pop())
            ends.append(end)
            begins[track] = begin
            event |= {"ts": begin, "dur": _us(end - begin)}
        yield event


def _counters(profiles: Sequence[FileProfile], uuids: Mapping[str, int]) -> Iterator[Event]:
    for uuid, number in uuids.items():
        yield _name("process_name", _DEVICE_PROCESS + number, 0, f"GPU {number} ({uuid})")
    for profile, pid in zip(profiles, _distinct_pids(profiles), strict=True):
        shares: dict[int, tuple[int, int]] = {}
        for sample in profile.samples():
            if sample.device < 0:
                continue
            number = uuids[profile.devices[sample.device]]
            memory = {"used_bytes": sample.used_bytes}
            if sample.memory_limit_bytes is not None:
                memory["limit_bytes"] = sample.memory_limit_bytes
            yield _counter(_DEVICE_PROCESS + number, "memory", sample.at_ns, memory)
            yield _counter(pid, f"memory on GPU {number}", sample.at_ns, {"own_bytes": sample.own_bytes})
            at_ns, busy_ns = shares.setdefault(number, (sample.at_ns, sample.busy_ns))
            if sample.at_ns - at_ns >= _RATE_NS:
                share = 100 * max(0, sample.busy_ns - busy_ns) / (sample.at_ns - at_ns)
                values = {"percent": round(share, 1), "limit_percent": sample.sm_limit_percent}
                yield _counter(_DEVICE_PROCESS + number, "GPU share", sample.at_ns, values)
                shares[number] = sample.at_ns, sample.busy_ns


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(pid: int, tid: int, name: str, category: str, start_ns: int, duration_ns: int, args: Event) -> Event:
    event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start_ns, "dur": duration_ns}
    return event | {"args": args} if args else event


def _counter(pid: int, name: str, at_ns: int, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at_ns, "args": dict(values)}


def _us(duration_ns: int) -> float:
    return duration_ns / 1000
