"""A run in the formats of Alnair's profiler, for tools that read its files: metrics.log and timeline.log."""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import BinaryIO, TextIO

from vgpurun.profiles.names import api_name
from vgpurun.profiles.reader import FileProfile
from vgpurun.profiles.summary import merged_apis

# Alnair's own names for functions of the driver, in the order of its file; it writes all of them, called or not.
_NAMES = {
    "cuInit": "cuInit",
    "cuMemAlloc": "cuMemAlloc",
    "cuMemFree": "cuMemFree",
    "cuLaunchKernel": "cuLaunchKernel",
    "cuMemcpyHtoD": "cuMemcpyH2D",
    "cuMemcpyDtoH": "cuMemcpyD2H",
    "cuGetProcAddress": "cuGetProcAddress",
    "cuMemcpyHtoDAsync": "cuMemcpyH2D_ASYNC",
}
_NO_COPY = -1
_SORTED_AT_ONCE = 200_000  # records

_Record = tuple[int, int, int, int, str]  # start_ns, burst_us, bytes, kind, name


def write_metrics(profiles: Sequence[FileProfile], file: TextIO) -> None:
    """Write the calls of each function and the microseconds they took, over all processes."""
    held = sum(held_bytes(profile) for profile in profiles)
    file.write(f"name:mem_used,count:{held}\n")
    counts = dict.fromkeys(_NAMES.values(), (0, 0))
    for total in merged_apis(profiles):
        name = _name(total.api)
        calls, duration_ns = counts.get(name, (0, 0))
        counts[name] = calls + total.calls, duration_ns + total.duration_ns
    for name, (calls, duration_ns) in counts.items():
        file.write(f"name:{name},count:{calls},burst:{duration_ns // 1000}\n")


def held_bytes(profile: FileProfile) -> int:
    """Return what a process held on all devices when that was last looked at."""
    last: dict[int, tuple[int, int]] = {}
    for sample in profile.samples():
        last[sample.device] = max(last.get(sample.device, (0, 0)), (sample.at_ns, sample.own_bytes))
    return sum(own_bytes for _, own_bytes in last.values())


def write_timeline(profiles: Sequence[FileProfile], file: TextIO) -> int:
    """Write each recorded call of all processes, by when it began. Returns how many there are."""
    written = 0
    for start_ns, burst_us, size_bytes, kind, name in _sorted(_records(profiles)):
        file.write(f"name:{name}, start:{start_ns}, burst:{burst_us}, bytes:{size_bytes}, kind:{kind}\n")
        written += 1
    return written


def _name(api: str) -> str:
    name = api_name(api)
    return _NAMES.get(name, name)


def _records(profiles: Iterable[FileProfile]) -> Iterator[_Record]:
    for profile in profiles:
        for call in profile.calls():
            kind = _NO_COPY if call.kind is None else call.kind.value
            yield call.start_ns, call.duration_ns // 1000, call.size_bytes, kind, _name(call.api)


def _sorted(records: Iterator[_Record]) -> Iterator[_Record]:
    """Sort records of any number: in parts, which wait in files and are then merged."""
    with ExitStack() as opened:
        files: list[BinaryIO] = []
        while part := sorted(islice(records, _SORTED_AT_ONCE)):
            if len(part) < _SORTED_AT_ONCE and not files:
                yield from part
                return
            files.append(opened.enter_context(tempfile.TemporaryFile()))
            for record in part:
                marshal.dump(record, files[-1])
            files[-1].seek(0)
        yield from heapq.merge(*map(_read_back, files))


def _read_back(file: BinaryIO) -> Iterator[_Record]:
    while True:
        try:
            yield marshal.load(file)
        except EOFError:
            return
