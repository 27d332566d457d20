"""The file of a program tells of the library: programs that are made here, and this machine's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vgpurun.host.program import Doubts, doubts_of

LOADER = b"\x7fELF .. /etc/ld.so.preload\0"


def content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def compiled(folder: Path, *options: str) -> bytes:
    (folder / "program.c").write_text("int main(void) { return 0; }\n")
    command = ["cc", *options, "-o", folder / "program", folder / "program.c"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip(f"this compiler has no {' '.join(options)}")
    return (folder / "program").read_bytes()


def test_a_program_of_this_host_has_the_library() -> None:
    assert doubts_of("/bin/sh", content) == Doubts()


@pytest.mark.parametrize("kind", ["-static", "-static-pie"])
def test_a_static_program_has_not(tmp_path: Path, kind: str) -> None:
    assert doubts_of("/p", {"/p": compiled(tmp_path, kind)}.get).without == "/p is statically linked"


@pytest.mark.parametrize(
    ("of_loader", "without"),
    [
        (LOADER, ""),
        (LOADER.replace(b"ld.so", b"ld-nix.so"), ""),
        (b"\x7fELF musl", "/p has the loader /lib/own.so, which preloads nothing"),
        (None, ""),
    ],
    ids=["glibc", "Nix", "musl", "not there"],
)
def test_a_loader_tells_by_the_file_that_it_reads(tmp_path: Path, of_loader: bytes | None, without: str) -> None:
    program = compiled(tmp_path, "-Wl,--dynamic-linker=/lib/own.so")
    assert doubts_of("/p", {"/p": program, "/lib/own.so": of_loader}.get).without == without


def test_a_loader_may_be_the_command_itself(tmp_path: Path) -> None:
    static = compiled(tmp_path, "-static")
    assert doubts_of("/lib/ld.so", {"/lib/ld.so": static + LOADER}.get) == Doubts()


def test_of_a_script_its_interpreter_is_looked_at(tmp_path: Path) -> None:
    files = {"/s": b"#! /t -x\n", "/t": b"#!/p", "/p": compiled(tmp_path, "-static"), "/endless": b"#!/endless\n"}
    assert doubts_of("/s", files.get).without == "/p is statically linked"
    assert doubts_of("/endless", files.get) == Doubts()


def test_a_program_with_address_sanitizer_does_not_start(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-fsanitize=address")
    found = doubts_of("/p", {"/p": program}.get)
    assert found.refuses == "/p is built with AddressSanitizer, which lets no library be loaded before its own"


@pytest.mark.parametrize("content", [None, b"", b"#!", b"#!\n", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(99)])
def test_of_what_cannot_be_read_there_is_no_doubt(content: bytes | None) -> None:
    assert doubts_of("/p", {"/p": content}.get) == Doubts()


def test_a_name_steers_no_terminal(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-Wl,--dynamic-linker=/\x1b[2J")
    assert "\x1b" not in doubts_of("/p", {"/p": program, "/\x1b[2J": b""}.get).without
