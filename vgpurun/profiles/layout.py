"""The layout of a profile file: the Python side of lib/src/profile/file.h, which a test compares."""

from __future__ import annotations

import ctypes
import struct

MAGIC = 0x464F525055504756
FORMAT = 4
SUFFIX = ".vgpuprofile"

MAX_APIS = 320
API_NAME_SIZE = 48
MAX_DEVICES = 32
UUID_SIZE = 48
TOTALS_SLOTS = 16
MAX_KERNELS = 4096
NAMES_SIZE = 786432
CHUNK_SIZE = 65536
CHUNK_RECORDS = 2047
CHUNKS_OFFSET = 2097152

NO_DEVICE = 255

CALL = 1
SPAN = 2
WAIT = 3
SAMPLE = 4
SAMPLE_MORE = 5

NO_COPY = 0
HOST_TO_HOST = 1
HOST_TO_DEVICE = 2
DEVICE_TO_HOST = 3
DEVICE_TO_DEVICE = 4
BY_POINTERS = 5

# struct profile_record, of which there may be millions: start, duration, value, stream, api, device, kind and copy.
RECORD = struct.Struct("<QQQIHBB")
# struct profile_total: calls, failed, bytes, duration and the longest.
TOTAL = struct.Struct("<QQQQQ")
# The beginning of struct profile_chunk: serial, thread, used, open, reserved.
CHUNK_HEAD = struct.Struct("<QIIIxxxxxxxxxxxx")


class Total(ctypes.LittleEndianStructure):
    """struct profile_total."""

    _fields_ = [
        ("calls", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("duration_ns", ctypes.c_uint64),
        ("longest_ns", ctypes.c_uint64),
    ]


class Kernel(ctypes.LittleEndianStructure):
    """struct profile_kernel."""

    _fields_ = [
        ("gpu_ns", ctypes.c_uint64),
        ("name_offset", ctypes.c_uint32),
        ("name_length", ctypes.c_uint32),
    ]


class Fill(ctypes.LittleEndianStructure):
    """struct profile_fill."""

    _fields_ = [
        ("known_ns", ctypes.c_uint64),
        ("filled_ns", ctypes.c_uint64),
    ]


class Header(ctypes.LittleEndianStructure):
    """struct profile_header."""

    _fields_ = [
        ("magic", ctypes.c_uint64),
        ("format", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("started_ns", ctypes.c_int64),
        ("ended_ns", ctypes.c_int64),
        ("clock_offset_ns", ctypes.c_int64),
        ("dropped", ctypes.c_uint64),
        ("api_count", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("kernel_count", ctypes.c_uint32),
        ("names_used", ctypes.c_uint32),
        ("command", ctypes.c_char * 1024),
        ("devices", ctypes.c_char * UUID_SIZE * MAX_DEVICES),
        ("apis", ctypes.c_char * API_NAME_SIZE * MAX_APIS),
    ]


class File(ctypes.LittleEndianStructure):
    """struct profile_file: all but the ring of chunks."""

    _fields_ = [
        ("header", Header),
        ("totals", Total * MAX_APIS * TOTALS_SLOTS),
        ("launches", ctypes.c_uint64 * MAX_KERNELS * TOTALS_SLOTS),
        ("kernels", Kernel * MAX_KERNELS),
        ("names", ctypes.c_char * NAMES_SIZE),
        ("fills", Fill * MAX_KERNELS),
    ]
