"""Reads of a program's file whether the loader will bring it in, and whether the program starts then.

Neither is seen from outside once the program runs: its memory is its user's alone, and it may have ended by then.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from vgpurun.host.elf import NotElfError, read_program
from vgpurun.options.mount_targets import PRELOAD_FILES
from vgpurun.util.printable import printable

_MOST_SCRIPTS = 5  # scripts that run one another; the kernel's limit
_MOST_LINE_BYTES = 256  # a script's first line, likewise
_PRELOADS = tuple(path.encode() for path in PRELOAD_FILES)
_SANITIZERS = ("libasan.so", "libclang_rt.asan")


@dataclass(frozen=True)
class Doubts:
    """Why the library will not be in a program, and why a program will not start with it; empty where all is well."""

    without: str = ""
    refuses: str = ""


def doubts_of(path: str, read_file: Callable[[str], bytes | None]) -> Doubts:
    """Look at a program, or at what runs a script. Of what cannot be read there is no doubt."""
    content = read_file(path) or b""
    for _ in range(_MOST_SCRIPTS):
        words = content[2:_MOST_LINE_BYTES].partition(b"\n")[0].split() if content[:2] == b"#!" else []
        if not words:
            break
        path = os.fsdecode(words[0])
        content = read_file(path) or b""
    with suppress(NotElfError):
        program = read_program(content)
        name = printable(path)
        is_sanitized = any(each.startswith(_SANITIZERS) for each in program.libraries)
        return Doubts(
            _without(name, content, program.loader, read_file),
            f"{name} is built with AddressSanitizer, which lets no library be loaded before its own" * is_sanitized,
        )
    return Doubts()


def _without(name: str, content: bytes, loader: str, read_file: Callable[[str], bytes | None]) -> str:
    if not loader:  # a loader has none either, which may be the command
        return "" if _preloads(content) else f"{name} is statically linked"
    of_loader = read_file(loader)
    if of_loader is None or _preloads(of_loader):
        return ""
    return f"{name} has the loader {printable(loader)}, which preloads nothing"


def _preloads(loader: bytes) -> bool:
    return any(path in loader for path in _PRELOADS)
