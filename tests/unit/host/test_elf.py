"""The facts that are read from a library's file."""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

import pytest
from elf_maker import AARCH64, make_elf

from vgpurun.host.elf import NotElfError, glibc_version, read_elf


def test_needed_and_defined_versions_are_told_apart() -> None:
    elf = read_elf(make_elf(needed=("GLIBC_2.2.5", "GLIBC_2.17"), defined=("libvgpu.so", "GLIBC_2.34")))
    assert elf.machine == "x86_64"
    assert elf.needed_versions == {"GLIBC_2.2.5", "GLIBC_2.17"}
    assert elf.defined_versions == {"libvgpu.so", "GLIBC_2.34"}
    assert glibc_version(elf.needed_versions) == (2, 17)
    assert glibc_version(elf.defined_versions) == (2, 34)


def test_versions_are_numbers_and_not_text() -> None:
    assert glibc_version(frozenset({"GLIBC_2.9", "GLIBC_2.17", "GLIBC_PRIVATE", "GCC_3.0"})) == (2, 17)
    assert glibc_version(frozenset({"GLIBC_PRIVATE"})) is None


def test_machines() -> None:
    assert read_elf(make_elf(machine=AARCH64)).machine == "aarch64"
    assert read_elf(make_elf(machine=243)).machine == "machine 243"


def test_a_file_without_versions() -> None:
    elf = read_elf(make_elf())
    assert (elf.needed_versions, elf.defined_versions) == (frozenset(), frozenset())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_this_hosts_own_c_library() -> None:
    maps = Path("/proc/self/maps").read_text()
    path = next((line.split()[-1] for line in maps.splitlines() if "/libc.so.6" in line or "/libc-2" in line), None)
    if path is None:
        pytest.skip("this Python is not linked with glibc")
    version = glibc_version(read_elf(Path(path).read_bytes()).defined_versions)
    assert version is not None
    assert version >= (2, 17)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 100, b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_no_elf_file(content: bytes) -> None:
    with pytest.raises(NotElfError):
        read_elf(content)


@pytest.mark.slow
def test_a_damaged_file_is_an_error_or_nonsense_but_never_a_crash() -> None:
    whole = make_elf(needed=("GLIBC_2.2.5", "GLIBC_2.17"), defined=("a", "b"))
    for length in range(len(whole)):
        with pytest.raises(NotElfError):
            read_elf(whole[:length])
    generator = random.Random(1)
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 6)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        with contextlib.suppress(NotElfError):
            read_elf(bytes(damaged))
