"""Reads the profile of a process: from a file that is whole, still grows, or was left by a killed process.

A file is input from a program that need not be ours: every value is bounded before it is used.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from vgpurun.errors import ProfileError
from vgpurun.profiles import layout
from vgpurun.profiles.model import ApiTotal, Call, CopyKind, GateWait, GpuSpan, KernelTotal, Sample
from vgpurun.util.printable import printable

Entry = TypeVar("Entry", layout.Kernel, ctypes.Array[ctypes.c_char])
READ_TRIES = 5  # for a chunk that is being overwritten
NO_LIMIT = 2**64 - 1
MOST_NS = 2**62  # in the year 2116; what is later is nonsense
_KIND_AT = layout.RECORD.size - 1
_LAST = (1 + 2 * layout.MAX_DEVICES) * layout.RECORD.size  # the end of a chunk: a call, and the samples after it
COPIES = {
    layout.NO_COPY: None,
    layout.HOST_TO_HOST: CopyKind.HOST_TO_HOST,
    layout.HOST_TO_DEVICE: CopyKind.HOST_TO_DEVICE,
    layout.DEVICE_TO_HOST: CopyKind.DEVICE_TO_HOST,
    layout.DEVICE_TO_DEVICE: CopyKind.DEVICE_TO_DEVICE,
    layout.BY_POINTERS: CopyKind.BY_POINTERS,
}


class Chunk(NamedTuple):
    """A run of records that one thread stored one after the other."""

    thread: int
    records: bytes


# The fields of struct profile_record, after the thread that stored it.
Record = tuple[int, int, int, int, int, int, int, int]


def profile_files(folder: Path, host: str | None = None) -> list[Path]:
    """Return the profiles in a folder, by name; with `host` those of a host, or container, that is called so.

    Raises:
        ProfileError: there is no such folder, it cannot be read, or it has no profiles.
    """
    begin = ".*" if host is None else f"{re.escape(host.replace('/', '_'))}-[0-9]+-[0-9]+"
    is_one = re.compile(begin + re.escape(layout.SUFFIX), re.DOTALL).fullmatch
    try:
        found = sorted(path for path in folder.iterdir() if is_one(path.name))
    except OSError as error:
        raise ProfileError(f"profile folder {folder}: {error.strerror}") from None
    if not found:
        whose = "" if host is None else f" of host {host}"
        raise ProfileError(f"profile folder {folder} has no profile{whose}: did the program use the GPU?")
    return found


def read_profiles(folder: Path, say: Callable[[str], None] | None = None, host: str | None = None) -> list[FileProfile]:
    """Read the profiles of all processes, in the order in which these started.

    `host` is as for profile_files. With `say`, files that are no profiles are left out, and it hears of each: one may
    just be made, or its process was killed at that moment.

    Raises:
        ProfileError: there are none, or one of them cannot be read.
    """
    found: list[FileProfile] = []
    left_out: list[ProfileError] = []
    for path in profile_files(folder, host):
        try:
            found.append(FileProfile(path))
        except ProfileError as error:
            if say is None:
                raise
            left_out.append(error)
    if not found:
        raise left_out[0]
    for each in left_out:
        assert say is not None
        say(f"warning: left out: {each}")
    return sorted(found, key=lambda profile: profile.started_ns)


class FileProfile:
    """A process's profile.

    Totals and names are those of the moment at which this was made; the records are read from the file each time.

    Raises:
        ProfileError: the file cannot be read, or is no profile of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        file = _read_fixed_part(path)
        header = file.header
        self.pid: int = header.pid  # its number, inside its container
        self.command = _text(header.command)
        self.started_ns: int = min(header.started_ns, MOST_NS)  # when it first called the driver
        self.ended_ns: int | None = header.ended_ns or None  # None: it was killed, or still runs
        self.dropped: int = header.dropped  # records that were overwritten because the file had reached its bound
        self._offset_ns: int = header.clock_offset_ns
        self._apis = [_text(entry.value) for entry in _first(header.apis, header.api_count)]
        devices = _first(header.devices, header.device_count)
        self.devices: Sequence[str] = [printable(_text(entry.value)) for entry in devices]  # UUIDs
        self.totals: Sequence[ApiTotal] = _totals(file, self._apis)
        self.kernels: Sequence[KernelTotal] = _kernels(file)

    @cached_property
    def last_ns(self) -> int:
        """The end of the process or, where that is not known, of the last thing that it recorded."""
        if self.ended_ns is not None:
            return self.ended_ns
        ends = [self._instant(_last_end_ns(chunk)) for chunk in self._chunks()]
        return max([self.started_ns, *ends])

    def calls(self) -> Iterator[Call]:
        """Yield them in the order in which each thread made them."""
        apis, device_count = self._apis, len(self.devices)
        for thread, start_ns, duration_ns, value, stream, api, device, kind in self._records(layout.CALL):
            yield Call(
                apis[api] if api < len(apis) else f"api {api}",
                self._instant(start_ns),
                min(duration_ns, MOST_NS),
                value,
                COPIES.get(kind >> 4),
                thread,
                device if device < device_count else -1,
                stream,
            )

    def spans(self) -> Iterator[GpuSpan]:
        """Yield them in the order in which they were measured."""
        for _, start_ns, duration_ns, value, stream, _, device, _ in self._records(layout.SPAN):
            own_ns, launches = min(value >> 16, duration_ns), value & 0xFFFF
            at_ns, duration_ns = self._instant(start_ns), min(duration_ns, MOST_NS)
            yield GpuSpan(self._device(device), stream, at_ns, duration_ns, launches, min(own_ns, MOST_NS))

    def waits(self) -> Iterator[GateWait]:
        """Yield them in the order in which they ended."""
        for thread, start_ns, duration_ns, _, _, _, device, _ in self._records(layout.WAIT):
            yield GateWait(self._device(device), self._instant(start_ns), min(duration_ns, MOST_NS), thread)

    def samples(self) -> Iterator[Sample]:
        """Yield them in the order in which they were taken."""
        first: Record | None = None
        for record in self._records(layout.SAMPLE, layout.SAMPLE_MORE):
            if record[-1] == layout.SAMPLE:
                first = record
            elif first is not None:
                yield self._sample(first, record)
                first = None

    def _sample(self, first: Record, more: Record) -> Sample:
        _, at_ns, _, used_bytes, sm_limit_percent, _, device, _ = first
        _, own_bytes, limit_bytes, busy_ns, *_ = more
        memory_limit_bytes = None if limit_bytes == NO_LIMIT else limit_bytes
        at_ns = self._instant(at_ns)
        return Sample(self._device(device), at_ns, used_bytes, own_bytes, memory_limit_bytes, busy_ns, sm_limit_percent)

    def _instant(self, monotonic_ns: int) -> int:
        return min(monotonic_ns + self._offset_ns, MOST_NS)

    def _device(self, index: int) -> int:
        return index if index < len(self.devices) else -1

    def _records(self, *kinds: int) -> Iterator[Record]:
        wanted = re.compile(b"[" + bytes(kind | high for kind in kinds for high in range(0, 256, 16)) + b"]", re.DOTALL)
        for chunk in self._chunks():
            for match in wanted.finditer(chunk.records[_KIND_AT :: layout.RECORD.size]):
                yield (chunk.thread, *layout.RECORD.unpack_from(chunk.records, match.start() * layout.RECORD.size))

    def _chunks(self) -> Iterator[Chunk]:
        """In the order in which they were begun; one at a time, since a file may be large."""
        try:
            with _open(self.path) as file:
                descriptor = file.fileno()
                for _, offset in sorted((_serial(descriptor, at), at) for at in _chunk_offsets(descriptor)):
                    chunk = _read_chunk(descriptor, offset)
                    if chunk is not None:
                        yield chunk
        except OSError as error:
            raise ProfileError(f"profile {self.path}: {error.strerror}") from None


def _open(path: Path) -> BinaryIO:
    """Open a regular file; whoever made it, nobody waits for a pipe or follows a link. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _chunk_offsets(descriptor: int) -> Iterator[int]:
    """Return where there may be chunks: not in holes of the file, which have no bounds."""
    size = os.fstat(descriptor).st_size
    offset = layout.CHUNKS_OFFSET
    while offset + layout.CHUNK_SIZE <= size:
        try:
            data = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is none
                return
            raise
        offset = data - (data - layout.CHUNKS_OFFSET) % layout.CHUNK_SIZE
        if offset + layout.CHUNK_SIZE <= size:
            yield offset
        offset += layout.CHUNK_SIZE


def _serial(descriptor: int, offset: int) -> int:
    return int.from_bytes(os.pread(descriptor, 8, offset), "little")


def _read_fixed_part(path: Path) -> layout.File:
    file = layout.File()
    try:
        with _open(path) as opened:
            read = opened.readinto(file)  # type: ignore[attr-defined]
    except OSError as error:
        raise ProfileError(f"profile {path}: {error.strerror}") from None
    if read < ctypes.sizeof(file) or file.header.magic != layout.MAGIC:
        raise ProfileError(f"{path} is not a profile, is damaged, or is still being made")
    if file.header.format != layout.FORMAT:
        raise ProfileError(f"profile {path} was written by another version of vgpurun, in format {file.header.format}")
    return file


def _totals(file: layout.File, apis: Sequence[str]) -> list[ApiTotal]:
    """Sum up the functions that were called, over the slots; most of these are empty."""
    merged: dict[int, tuple[int, ...]] = {}
    for slot in file.totals:
        data = bytes(slot)
        if not any(data):
            continue
        for index, part in enumerate(layout.TOTAL.iter_unpack(data)):
            if part[0]:
                *sums, longest_ns = merged.get(index, (0, 0, 0, 0, 0))
                added = (one + other for one, other in zip(sums, part, strict=False))
                merged[index] = (*added, max(longest_ns, part[-1]))
    return [ApiTotal(api, *merged[index]) for index, api in enumerate(apis) if index in merged]


def _kernels(file: layout.File) -> list[KernelTotal]:
    """Sum up the kernels that were launched."""
    names = memoryview(file).cast("B")[layout.File.names.offset :][: layout.NAMES_SIZE]
    room = layout.NAMES_SIZE  # names that overlap cannot take more
    slots = list(file.launches)
    found = []
    fills = file.fills
    for index, each in enumerate(_first(file.kernels, file.header.kernel_count)):
        if launches := sum(slot[index] for slot in slots):
            name = bytes(names[each.name_offset :][: min(each.name_length, room)])
            room -= len(name)
            known_ns = min(fills[index].known_ns, each.gpu_ns)
            filled_ns = min(fills[index].filled_ns, known_ns)
            found.append(KernelTotal(_text(name), launches, each.gpu_ns, known_ns, filled_ns))
    return found


def _read_chunk(descriptor: int, offset: int) -> Chunk | None:
    """None when it holds nothing, or is overwritten all the time."""
    for _ in range(READ_TRIES):
        data = os.pread(descriptor, layout.CHUNK_SIZE, offset)
        if len(data) < layout.CHUNK_SIZE:  # cut off meanwhile
            return None
        serial, thread, used, _ = layout.CHUNK_HEAD.unpack_from(data)
        begin = layout.CHUNK_HEAD.size
        if serial == 0:
            return None
        if os.pread(descriptor, 8, offset) == data[:8]:
            return Chunk(thread, data[begin : begin + min(used, layout.CHUNK_RECORDS) * layout.RECORD.size])
    return None


def _last_end_ns(chunk: Chunk) -> int:
    """When the latest of a chunk's records ended; they are stored when they end."""
    return max((_end_ns(fields) for fields in layout.RECORD.iter_unpack(chunk.records[-_LAST:])), default=0)


def _end_ns(fields: tuple[int, ...]) -> int:
    """When a record ended. A sample's second half has no times."""
    start_ns, duration_ns, *_, kind_and_copy = fields
    if kind_and_copy & 15 == layout.SAMPLE_MORE:
        return 0
    return start_ns + (0 if kind_and_copy & 15 == layout.SAMPLE else duration_ns)


def _first(array: ctypes.Array[Entry], count: int) -> list[Entry]:
    """The first `count` entries, or all that there are."""
    return [array[index] for index in range(min(count, len(array)))]


def _text(data: bytes) -> str:
    return printable(data.decode(errors="replace"), keep="\t\n")
