"""Headers of lib/src and lib/sim declare what the file of their name defines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import CHECKOUT

TREES = [CHECKOUT / "lib" / "src", CHECKOUT / "lib" / "sim"]
DEFINITION = re.compile(r"(?m)^(?!static)[A-Za-z_][\w *]*[ *]([a-z_]\w*)\([^;{}]*\)\s*\{")
DECLARATION = re.compile(r"(?m)^(?!static|typedef)[A-Za-z_][\w *]*[ *]([a-z_]\w*)\([^;{}]*\)[^;{}]*;")
OF_THE_DRIVER = ("cu", "nvml")  # prototypes that an older header lacks
MOST_ELSEWHERE_PERCENT = 10


def declared(tree: Path) -> Iterator[tuple[str, Path, set[str]]]:
    """Yield each function that a header declares, the header, and the names of the files that define it."""
    defined: dict[str, set[str]] = {}
    sources = sorted(tree.rglob("*.[ch]"))
    for path in sources:
        if path.suffix == ".c":
            for name in DEFINITION.findall(path.read_text()):
                defined.setdefault(name, set()).add(path.stem)
    for path in sources:
        if path.suffix == ".h":
            names = DECLARATION.findall(path.read_text())
            yield from ((name, path, defined[name]) for name in names if name in defined)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_a_header_declares_what_the_file_of_its_name_defines(tree: Path) -> None:
    functions = [each for each in declared(tree) if not each[0].startswith(OF_THE_DRIVER)]
    assert len(functions) > 200
    elsewhere = [f"{name}: {path.name}, {files}" for name, path, files in functions if path.stem not in files]
    assert len(elsewhere) * 100 < MOST_ELSEWHERE_PERCENT * len(functions), elsewhere
