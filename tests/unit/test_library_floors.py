"""Both C trees are built in floors: each file includes, and calls, only what is not above it.

The floors of lib/src are its folders. Those of the simulated driver are in its README, and no circle leads through its
files.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from support import CHECKOUT

LIBRARY = [
    "entry",
    "nvml",
    "cuda",
    "stream",
    "device",
    "hook",
    "profile",
    "scheduler",
    "compute",
    "tenants",
    "shared",
    "memory",
    "base",
]  # from top to bottom
KERNELS = {"ioctl"}  # the simulated driver exports it and passes calls on: those within mean the kernel


@dataclass(frozen=True)
class Tree:
    """Sources, the objects made from them, how high each place in the tree is, and which places there are."""

    sources: Path
    objects: Path
    heights: dict[str, int]
    places: set[str]
    place: Callable[[str], str]  # a file's, by its path below the sources


def library() -> Tree:
    """lib/src, by its folders."""
    sources = CHECKOUT / "lib" / "src"
    heights = {name: -number for number, name in enumerate(LIBRARY)} | {"abi.h": -len(LIBRARY)}
    places = {path.name for path in sources.iterdir()}
    return Tree(sources, CHECKOUT / "lib" / "build" / "obj", heights, places, lambda path: path.split("/")[0])


def simulator() -> Tree:
    """lib/sim, by what its README says of each file and its header."""
    sources = CHECKOUT / "lib" / "sim"
    table = (sources / "README.md").read_text()
    floors = re.findall(r"^\| [\w-]+ \| [^|]+ \|((?: `\w+`)+) \|$", table, re.MULTILINE)
    heights = {name: -number for number, floor in enumerate(floors) for name in re.findall(r"\w+", floor)}
    places = {path.stem for path in sources.glob("*.[ch]")}
    return Tree(sources, CHECKOUT / "lib" / "build" / "sim" / "obj", heights, places, lambda path: Path(path).stem)


TREES = pytest.mark.parametrize("tree", [library(), simulator()], ids=["library", "simulator"])


def includes(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield every file and what it includes of its tree, by their paths there."""
    for path in sorted(tree.sources.rglob("*.[ch]")):
        for included in re.findall(r'^#include "(?!\.\./)([^"]+)"', path.read_text(), re.MULTILINE):
            assert (tree.sources / included).exists(), f"{path.name} includes {included}, which is not a path there"
            yield str(path.relative_to(tree.sources)), included


def calls(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield every object and the objects whose functions and data it uses."""
    objects = [str(path.relative_to(tree.objects)) for path in tree.objects.rglob("*.o")]
    sources = {path: (tree.sources / path).with_suffix(".c") for path in objects}
    objects = [path for path, source in sources.items() if source.exists()]
    if not objects or any(sources[path].stat().st_mtime > (tree.objects / path).stat().st_mtime for path in objects):
        pytest.skip("it is not built from these sources: `make lib`")
    listed = subprocess.run(
        ["nm", "-A", "-P", "--extern-only", *objects], cwd=tree.objects, capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split()[:3] for line in listed.splitlines()]  # the object with a colon, the symbol, its kind
    defined = {symbol: path for path, symbol, kind in symbols if kind not in "Uw" and symbol not in KERNELS}
    for path, symbol, kind in symbols:
        if kind in "Uw" and symbol in defined:
            yield path.rstrip(":"), defined[symbol].rstrip(":")


def climbs(tree: Tree, here: str, there: str) -> bool:
    return tree.heights[tree.place(there)] > tree.heights[tree.place(here)]


@TREES
def test_everything_has_a_floor(tree: Tree) -> None:
    assert tree.places == set(tree.heights)


@TREES
def test_no_include_runs_up(tree: Tree) -> None:
    arrows = [f"{here} includes {there}" for here, there in includes(tree) if climbs(tree, here, there)]
    assert not arrows, "\n".join(arrows)


@TREES
def test_no_call_runs_up(tree: Tree) -> None:
    arrows = sorted({f"{here} uses {there}" for here, there in calls(tree) if climbs(tree, here, there)})
    assert not arrows, "\n".join(arrows)


def test_no_circle_leads_through_files_of_the_simulator() -> None:
    below: dict[str, set[str]] = {}
    tree = simulator()
    for here, there in (*includes(tree), *calls(tree)):
        if Path(here).stem != Path(there).stem:
            below.setdefault(Path(here).stem, set()).add(Path(there).stem)
    TopologicalSorter(below).prepare()  # raises CycleError, which names the circle
