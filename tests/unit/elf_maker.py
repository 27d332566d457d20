"""Makes small ELF files with the versions that a test wants."""

from __future__ import annotations

import struct

X86_64, AARCH64 = 62, 183


def make_elf(
    needed: tuple[str, ...] = (), defined: tuple[str, ...] = (), machine: int = X86_64, extra: bytes = b""
) -> bytes:
    """A shared library's header, version tables and names, with ``extra`` at its end."""
    names = b"\0"
    offsets = {}
    for name in (*needed, *defined, "libc.so.6"):
        offsets[name] = len(names)
        names += name.encode() + b"\0"
    verneed = _verneed(needed, offsets)
    verdef = _verdef(defined, offsets)
    strings_at = 64
    verneed_at = strings_at + len(names)
    verdef_at = verneed_at + len(verneed)
    sections_at = verdef_at + len(verdef)
    sections = [(0, 0, 0), (3, strings_at, 0)]
    if needed:
        sections.append((0x6FFFFFFE, verneed_at, 1))
    if defined:
        sections.append((0x6FFFFFFD, verdef_at, 1))
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, machine, 1, 0, 0, sections_at, 0, 64, 56, 0, 64, len(sections), 0
    )
    table = b"".join(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, 0, link, 0, 0, 0) for kind, at, link in sections)
    return header + names + verneed + verdef + table + extra


def _verneed(needed: tuple[str, ...], offsets: dict[str, int]) -> bytes:
    if not needed:
        return b""
    content = struct.pack("<HHIII", 1, len(needed), offsets["libc.so.6"], 16, 0)
    for number, name in enumerate(needed):
        step = 16 if number < len(needed) - 1 else 0
        content += struct.pack("<IHHII", 0, 0, number + 2, offsets[name], step)
    return content


def _verdef(defined: tuple[str, ...], offsets: dict[str, int]) -> bytes:
    content = b""
    for number, name in enumerate(defined):
        step = 28 if number < len(defined) - 1 else 0
        content += struct.pack("<HHHHIII", 1, 0, number + 1, 1, 0, 20, step) + struct.pack("<II", offsets[name], 0)
    return content
