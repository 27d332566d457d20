"""Profiles made by hand, byte by byte as the library lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vgpurun.profiles import layout

OFFSET_NS = 1_700_000_000_000_000_000


def record(
    kind: int,
    start_ns: int,
    duration_ns: int = 0,
    value: int = 0,
    stream: int = 0,
    api: int = 0,
    device: int = layout.NO_DEVICE,
    copy: int = layout.NO_COPY,
) -> bytes:
    """Return a record, with times of CLOCK_MONOTONIC."""
    return layout.RECORD.pack(start_ns, duration_ns, value, stream, api, device, kind | copy << 4)


def chunk(serial: int, thread: int, records: Sequence[bytes], used: int | None = None) -> bytes:
    """Return a chunk; `used` is what its head says, if that differs."""
    head = layout.CHUNK_HEAD.pack(serial, thread, len(records) if used is None else used, 0)
    return (head + b"".join(records)).ljust(layout.CHUNK_SIZE, b"\0")


def new_file(apis: Sequence[str], devices: Sequence[str] = ()) -> layout.File:
    """The fixed part of a profile of a process that still runs."""
    file = layout.File()
    header = file.header
    header.magic, header.format, header.pid = layout.MAGIC, layout.FORMAT, 42
    header.started_ns, header.clock_offset_ns, header.command = OFFSET_NS, OFFSET_NS, b"python train.py"
    header.api_count, header.device_count = len(apis), len(devices)
    for index, api in enumerate(apis):
        header.apis[index].value = api.encode()
    for index, device in enumerate(devices):
        header.devices[index].value = device.encode()
    return file


def add_kernel(file: layout.File, name: bytes, launches: int, gpu_ns: int, fill: tuple[int, int] = (0, 0)) -> None:
    """Another kernel, with its name."""
    header = file.header
    offset = layout.File.names.offset + header.names_used
    memory = memoryview(file).cast("B")
    memory[offset : offset + len(name)] = name
    file.kernels[header.kernel_count] = layout.Kernel(gpu_ns, header.names_used, len(name))
    file.fills[header.kernel_count] = layout.Fill(*fill)
    file.launches[0][header.kernel_count] = launches
    header.kernel_count += 1
    header.names_used += len(name)


def write(path: Path, file: layout.File, chunks: Sequence[bytes] = ()) -> Path:
    """The file on the disk."""
    path.write_bytes(bytes(file).ljust(layout.CHUNKS_OFFSET, b"\0") + b"".join(chunks))
    return path
