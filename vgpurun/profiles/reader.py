"""Reads the profile of a process: from a file that is whole, still grows, or was left by a killed process.

What is in a file is input from a program that need not be ours: whatever is read is bounded before it is used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from vgpurun.errors import ProfileError
from vgpurun.profiles import layout
from vgpurun.profiles.model import ApiTotal, Call, CopyKind, GateWait, GpuSpan, KernelTotal, Sample

Entry = TypeVar("Entry", layout.Kernel, ctypes.Array[ctypes.c_char])
READ_TRIES = 5  # of a chunk that is being overwritten
NO_LIMIT = 2**64 - 1
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

    serial: int
    thread: int
    records: bytes


class Record(NamedTuple):
    """struct profile_record, with its thread."""

    start_ns: int
    duration_ns: int
    value: int
    stream: int
    api: int
    device: int
    kind: int
    copy: int
    thread: int


def profile_files(folder: Path) -> list[Path]:
    """The profiles in a folder, by name.

    Raises:
        ProfileError: there is no such folder, it cannot be read, or it has no profiles.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(layout.SUFFIX))
    except OSError as error:
        raise ProfileError(f"profile folder {folder}: {error.strerror}") from None
    if not found:
        raise ProfileError(f"profile folder {folder} has no profile: did the program use the GPU?")
    return found


def read_profiles(folder: Path) -> list[FileProfile]:
    """The profiles of all processes, in the order in which these started.

    Raises:
        ProfileError: there are none, or one of them cannot be read.
    """
    return sorted((FileProfile(path) for path in profile_files(folder)), key=lambda profile: profile.started_ns)


class FileProfile:
    """One process's profile: the ProcessProfile of the model.

    Totals and names are those of the moment at which this was made; the records are read from the file each time.

    Raises:
        ProfileError: the file cannot be read, or is no profile of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _read_fixed_part(path)
        header = self._file.header
        self.pid: int = header.pid
        self.command = _text(header.command)
        self.started_ns: int = header.started_ns
        self.ended_ns: int | None = header.ended_ns or None
        self.dropped: int = header.dropped
        self._offset_ns: int = header.clock_offset_ns
        self._apis = [_text(entry.value) for entry in _first(header.apis, header.api_count)]
        self.devices: Sequence[str] = [_text(entry.value) for entry in _first(header.devices, header.device_count)]

    @cached_property
    def totals(self) -> Sequence[ApiTotal]:
        """Of the functions that were called."""
        totals = (self._total(index, api) for index, api in enumerate(self._apis))
        return [total for total in totals if total.calls]

    def _total(self, index: int, api: str) -> ApiTotal:
        parts = [slot[index] for slot in self._file.totals]
        return ApiTotal(
            api,
            calls=sum(part.calls for part in parts),
            failed=sum(part.failed for part in parts),
            size_bytes=sum(part.bytes for part in parts),
            duration_ns=sum(part.duration_ns for part in parts),
            longest_ns=max(part.longest_ns for part in parts),
        )

    @cached_property
    def kernels(self) -> Sequence[KernelTotal]:
        """Of the kernels that were launched."""
        names = bytes(self._file)[layout.File.names.offset :]
        kernels = _first(self._file.kernels, self._file.header.kernel_count)
        return [
            KernelTotal(_text(names[each.name_offset :][: each.name_length]), each.launches, each.gpu_ns)
            for each in kernels
            if each.launches
        ]

    @cached_property
    def last_ns(self) -> int:
        """The end of the process or, where that is not known, of the last thing that it recorded."""
        if self.ended_ns is not None:
            return self.ended_ns
        ends = [_end_ns(_last_record(chunk)) + self._offset_ns for chunk in self._chunks() if chunk.records]
        return max([self.started_ns, *ends])

    def calls(self) -> Iterator[Call]:
        """In the order in which each thread made them."""
        for record in self._records(layout.CALL):
            api = self._apis[record.api] if record.api < len(self._apis) else f"api {record.api}"
            yield Call(
                api=api,
                start_ns=record.start_ns + self._offset_ns,
                duration_ns=record.duration_ns,
                size_bytes=record.value,
                kind=COPIES.get(record.copy),
                thread=record.thread,
                device=self._device(record),
                stream=record.stream,
            )

    def spans(self) -> Iterator[GpuSpan]:
        """In the order in which they were measured."""
        for record in self._records(layout.SPAN):
            start_ns = record.start_ns + self._offset_ns
            yield GpuSpan(self._device(record), record.stream, start_ns, record.duration_ns, record.value)

    def waits(self) -> Iterator[GateWait]:
        """In the order in which they ended."""
        for record in self._records(layout.WAIT):
            start_ns = record.start_ns + self._offset_ns
            yield GateWait(self._device(record), start_ns, record.duration_ns, record.thread)

    def samples(self) -> Iterator[Sample]:
        """In the order in which they were taken."""
        first: Record | None = None
        for record in self._records(layout.SAMPLE, layout.SAMPLE_MORE):
            if record.kind == layout.SAMPLE_MORE and first is not None:
                yield Sample(
                    device=self._device(first),
                    at_ns=first.start_ns + self._offset_ns,
                    used_bytes=first.value,
                    own_bytes=record.start_ns,
                    memory_limit_bytes=None if record.duration_ns == NO_LIMIT else record.duration_ns,
                    busy_ns=record.value,
                    sm_limit_percent=first.stream,
                )
            first = record if record.kind == layout.SAMPLE else None

    def _device(self, record: Record) -> int:
        return record.device if record.device < len(self.devices) else -1

    def _records(self, *kinds: int) -> Iterator[Record]:
        for chunk in sorted(self._chunks()):
            for fields in layout.RECORD.iter_unpack(chunk.records):
                kind, copy = fields[-1] & 15, fields[-1] >> 4
                if kind in kinds:
                    yield Record._make((*fields[:-1], kind, copy, chunk.thread))

    def _chunks(self) -> Iterator[Chunk]:
        """In the order of their places."""
        try:
            with self.path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                for offset in range(layout.CHUNKS_OFFSET, size - layout.CHUNK_SIZE + 1, layout.CHUNK_SIZE):
                    chunk = _read_chunk(file.fileno(), offset)
                    if chunk is not None:
                        yield chunk
        except OSError as error:
            raise ProfileError(f"profile {self.path}: {error.strerror}") from None


def _read_fixed_part(path: Path) -> layout.File:
    file = layout.File()
    try:
        with path.open("rb") as opened:
            read = opened.readinto(file)
    except OSError as error:
        raise ProfileError(f"profile {path}: {error.strerror}") from None
    if read < ctypes.sizeof(file) or file.header.magic != layout.MAGIC:
        raise ProfileError(f"{path} is no profile, or a damaged one")
    if file.header.format != layout.FORMAT:
        raise ProfileError(f"profile {path} was written by another version of vgpurun, in format {file.header.format}")
    return file


def _read_chunk(descriptor: int, offset: int) -> Chunk | None:
    """None when it holds nothing, or is overwritten all the time."""
    for _ in range(READ_TRIES):
        data = os.pread(descriptor, layout.CHUNK_SIZE, offset)
        serial, thread, used, _ = layout.CHUNK_HEAD.unpack_from(data)
        begin = layout.CHUNK_HEAD.size
        if serial == 0:
            return None
        if os.pread(descriptor, 8, offset) == data[:8]:
            return Chunk(serial, thread, data[begin : begin + min(used, layout.CHUNK_RECORDS) * layout.RECORD.size])
    return None


def _last_record(chunk: Chunk) -> tuple[int, ...]:
    return layout.RECORD.unpack(chunk.records[-layout.RECORD.size :])


def _end_ns(fields: tuple[int, ...]) -> int:
    """When a record ended. A sample's second half has no times, and follows a call by a hair."""
    start_ns, duration_ns, *_, kind_and_copy = fields
    if kind_and_copy & 15 == layout.SAMPLE_MORE:
        return 0
    return start_ns + (0 if kind_and_copy & 15 == layout.SAMPLE else duration_ns)


def _first(array: ctypes.Array[Entry], count: int) -> list[Entry]:
    """The first `count` entries, or all that there are."""
    return [array[index] for index in range(min(count, len(array)))]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
