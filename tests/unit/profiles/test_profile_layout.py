"""vgpurun/profiles/layout.py and lib/src/profile/file.h say the same."""

from __future__ import annotations

import ctypes

import c_header
import pytest

from support import CHECKOUT
from vgpurun.profiles import layout
from vgpurun.profiles.model import CopyKind

HEADER = CHECKOUT / "lib" / "src" / "profile" / "file.h"


class Record(ctypes.LittleEndianStructure):
    """The fields that layout.RECORD unpacks."""

    _fields_ = [
        ("start_ns", ctypes.c_uint64),
        ("duration_ns", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("api", ctypes.c_uint16),
        ("device", ctypes.c_uint8),
        ("kind_and_copy", ctypes.c_uint8),
    ]


class Chunk(ctypes.LittleEndianStructure):
    """The fields that layout.CHUNK_HEAD unpacks, and the records."""

    _fields_ = [
        ("serial", ctypes.c_uint64),
        ("thread", ctypes.c_uint32),
        ("used", ctypes.c_uint32),
        ("open", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 12),
        ("records", Record * layout.CHUNK_RECORDS),
    ]


STRUCTS = {
    "profile_record": Record,
    "profile_chunk": Chunk,
    "profile_total": layout.Total,
    "profile_kernel": layout.Kernel,
    "profile_fill": layout.Fill,
    "profile_header": layout.Header,
    "profile_file": layout.File,
}


@pytest.fixture(scope="module")
def seen_by_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return c_header.facts(HEADER, "PROFILE_", STRUCTS, tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize("name", c_header.macros(HEADER, "PROFILE_"))
def test_constants(name: str, seen_by_c: dict[str, str]) -> None:
    assert str(getattr(layout, name.removeprefix("PROFILE_"))) == seen_by_c[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_layout(name: str, seen_by_c: dict[str, str]) -> None:
    c_header.compare(name, STRUCTS[name], seen_by_c)


def test_every_struct_of_the_header_is_compared() -> None:
    assert c_header.structs(HEADER) == set(STRUCTS)


def test_the_compact_forms_unpack_what_the_structures_hold() -> None:
    record = Record(1, 2, 3, 4, 5, 6, 7)
    assert layout.RECORD.unpack(bytes(record)) == (1, 2, 3, 4, 5, 6, 7)
    chunk = Chunk(1, 2, 3, 4)
    assert layout.CHUNK_HEAD.unpack(bytes(chunk)[: Chunk.records.offset]) == (1, 2, 3, 4)


@pytest.mark.parametrize("kind", CopyKind)
def test_a_copy_is_one_more_than_its_kind(kind: CopyKind) -> None:
    assert getattr(layout, kind.name) == kind.value + 1
