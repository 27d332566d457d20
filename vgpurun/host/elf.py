"""Reads a library's or program's file without loading it: its machine, its C library versions, its names."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import TypeAlias

Content: TypeAlias = bytes | mmap

MACHINES = {62: "x86_64", 183: "aarch64"}

_SHT_GNU_VERDEF, _SHT_GNU_VERNEED, _SHT_STRTAB, _SHT_DYNAMIC = 0x6FFFFFFD, 0x6FFFFFFE, 3, 6
_PT_INTERP, _DT_NEEDED = 3, 1
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PART, _DYNAMIC = struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")
_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")
_MAX_RECORDS = 10_000


class NotElfError(ValueError):
    """The content is not a whole 64-bit little-endian ELF file."""


@dataclass(frozen=True)
class ElfFile:
    """The machine's name as `uname -m` has it, and the symbol versions needed from others and defined here."""

    machine: str
    needed_versions: frozenset[str]
    defined_versions: frozenset[str]


def read_elf(content: Content) -> ElfFile:
    """Read an ELF file that is in memory or mapped. Raises NotElfError, whatever the bytes are."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise NotElfError("not a 64-bit little-endian ELF file")
    try:
        header = _HEADER.unpack_from(content)
        sections = _sections(content, offset=header[6], size=header[11], count=header[12])
        needed: set[str] = set()
        defined: set[str] = set()
        for section in sections:
            if section.type == _SHT_GNU_VERNEED:
                needed.update(_needed(content, section.offset, _strings(sections, section.link)))
            elif section.type == _SHT_GNU_VERDEF:
                defined.update(_defined(content, section.offset, _strings(sections, section.link)))
    except (struct.error, IndexError, OverflowError):
        raise NotElfError("the ELF file is cut short or damaged") from None
    return ElfFile(MACHINES.get(header[2], f"machine {header[2]}"), frozenset(needed), frozenset(defined))


@dataclass(frozen=True)
class Program:
    """The loader that a program names, or nothing where it is linked statically, and the libraries that it needs."""

    loader: str
    libraries: frozenset[str]


def read_program(content: Content) -> Program:
    """Read a program's file that is in memory or mapped. Raises NotElfError, whatever the bytes are."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise NotElfError("not a 64-bit little-endian ELF file")
    try:
        header = _HEADER.unpack_from(content)
        parts = [_PART.unpack_from(content, header[5] + number * _PART.size) for number in range(header[10])]
        loader = next((_string(content, part[2]) for part in parts if part[0] == _PT_INTERP), "")
        sections = _sections(content, header[6], header[11], header[12]) if header[12] else []
        dynamic = [section for section in sections if section.type == _SHT_DYNAMIC]
        libraries = {name for each in dynamic for name in _libraries(content, each, _strings(sections, each.link))}
    except (struct.error, IndexError, OverflowError):
        raise NotElfError("the ELF file is cut short or damaged") from None
    return Program(loader, frozenset(libraries))


def glibc_version(versions: frozenset[str]) -> tuple[int, ...] | None:
    """Return the newest GLIBC_x.y among symbol versions, or None when there is none."""
    numbers = [version.removeprefix("GLIBC_").split(".") for version in versions if version.startswith("GLIBC_")]
    return max((tuple(map(int, parts)) for parts in numbers if all(part.isdigit() for part in parts)), default=None)


@dataclass(frozen=True)
class _Section:
    type: int
    offset: int
    size: int
    link: int


def _sections(content: Content, offset: int, size: int, count: int) -> list[_Section]:
    if size != _SECTION.size:
        raise NotElfError("the file has no section table")
    fields = (_SECTION.unpack_from(content, offset + number * size) for number in range(count))
    return [_Section(type=section[1], offset=section[4], size=section[5], link=section[6]) for section in fields]


def _strings(sections: list[_Section], link: int) -> int:
    if sections[link].type != _SHT_STRTAB:
        raise NotElfError("a version table has no names")
    return sections[link].offset


def _libraries(content: Content, section: _Section, strings: int) -> Iterator[str]:
    for number in range(min(section.size // _DYNAMIC.size, _MAX_RECORDS)):
        tag, value = _DYNAMIC.unpack_from(content, section.offset + number * _DYNAMIC.size)
        if tag == _DT_NEEDED:
            yield _string(content, strings + value)


def _needed(content: Content, offset: int, strings: int) -> Iterator[str]:
    for _ in range(_MAX_RECORDS):
        _, count, _, first, following = _VERNEED.unpack_from(content, offset)
        entry = offset + first
        for _ in range(count):
            _, _, _, name, step = _VERNAUX.unpack_from(content, entry)
            yield _string(content, strings + name)
            entry += step
        if not following:
            return
        offset += following


def _defined(content: Content, offset: int, strings: int) -> Iterator[str]:
    for _ in range(_MAX_RECORDS):
        _, _, _, _, _, first, following = _VERDEF.unpack_from(content, offset)
        name, _ = _VERDAUX.unpack_from(content, offset + first)
        yield _string(content, strings + name)
        if not following:
            return
        offset += following


def _string(content: Content, offset: int) -> str:
    end = content.find(b"\0", offset, offset + 256)
    return content[offset : max(end, offset)].decode("ascii", "replace")
