"""Headers of lib/src declare what the file of their name defines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from support import CHECKOUT

SOURCES = sorted((CHECKOUT / "lib" / "src").rglob("*.[ch]"))
DEFINITION = re.compile(r"(?m)^(?!static)[A-Za-z_][\w *]*[ *]([a-z_]\w*)\([^;{}]*\)\s*\{")
DECLARATION = re.compile(r"(?m)^(?!static|typedef)[A-Za-z_][\w *]*[ *]([a-z_]\w*)\([^;{}]*\)[^;{}]*;")
OF_THE_DRIVER = ("cu", "nvml")  # prototypes that an older header lacks
MOST_ELSEWHERE_PERCENT = 10


def declared() -> Iterator[tuple[str, Path, set[str]]]:
    """Yield each function that a header declares, the header, and the names of the files that define it."""
    defined: dict[str, set[str]] = {}
    for path in SOURCES:
        if path.suffix == ".c":
            for name in DEFINITION.findall(path.read_text()):
                defined.setdefault(name, set()).add(path.stem)
    for path in SOURCES:
        if path.suffix == ".h":
            names = DECLARATION.findall(path.read_text())
            yield from ((name, path, defined[name]) for name in names if name in defined)


def test_a_header_declares_what_the_file_of_its_name_defines() -> None:
    functions = [each for each in declared() if not each[0].startswith(OF_THE_DRIVER)]
    assert len(functions) > 200
    elsewhere = [f"{name}: {path.name}, {files}" for name, path, files in functions if path.stem not in files]
    assert len(elsewhere) * 100 < MOST_ELSEWHERE_PERCENT * len(functions), elsewhere
