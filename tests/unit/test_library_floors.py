"""The folders of lib/src are floors: each includes, and calls, only what is below it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from support import CHECKOUT

SOURCES = CHECKOUT / "lib" / "src"
OBJECTS = CHECKOUT / "lib" / "build" / "obj"

# From top to bottom.
FLOORS = [
    "entry",
    "nvml",
    "cuda",
    "stream",
    "device",
    "hook",
    "profile",
    "scheduler",
    "compute",
    "turns",
    "shared",
    "memory",
    "base",
]
HEIGHTS = {name: -number for number, name in enumerate(FLOORS)} | {"abi.h": -len(FLOORS)}


def floor(path: str) -> int:
    """Return how high a file stands, by its path below lib/src."""
    return HEIGHTS[path.split("/")[0]]


def includes() -> Iterator[tuple[str, str]]:
    """Yield every file and what it includes of the library, by their paths below lib/src."""
    for path in sorted(SOURCES.rglob("*.[ch]")):
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            assert (SOURCES / included).exists(), f"{path.name} includes {included}, which is not a path below lib/src"
            yield str(path.relative_to(SOURCES)), included


def calls() -> Iterator[tuple[str, str]]:
    """Yield every object and the objects whose functions and data it uses."""
    objects = [str(path.relative_to(OBJECTS)) for path in OBJECTS.glob("*/*.o") if path.parent.name in HEIGHTS]
    if not objects:
        pytest.skip("the library is not built: `make lib`")
    listed = subprocess.run(
        ["nm", "-A", "-P", "--extern-only", *objects], cwd=OBJECTS, capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split()[:3] for line in listed.splitlines()]  # the object with a colon, the symbol, its kind
    defined = {symbol: path for path, symbol, kind in symbols if kind not in "Uw"}
    for path, symbol, kind in symbols:
        if kind in "Uw" and symbol in defined:
            yield path.rstrip(":"), defined[symbol].rstrip(":")


def test_every_folder_has_a_floor() -> None:
    assert {path.name for path in SOURCES.iterdir()} == set(HEIGHTS)


def test_no_include_runs_up() -> None:
    arrows = [f"{here} includes {there}" for here, there in includes() if floor(there) > floor(here)]
    assert not arrows, "\n".join(arrows)


def test_no_call_runs_up() -> None:
    arrows = sorted({f"{here} uses {there}" for here, there in calls() if floor(there) > floor(here)})
    assert not arrows, "\n".join(arrows)
