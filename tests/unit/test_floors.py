"""The packages of vgpurun/ are floors: each imports only what is below it, so that no circle can come to be.

An import inside a function or under TYPE_CHECKING counts like any other: to read the file one has to know both ends.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import vgpurun

SOURCES = Path(vgpurun.__file__).parent

# From top to bottom. Packages on one line share a floor, and do not import one another either.
FLOORS = (
    "__main__ docs",
    "cli.commands",
    "cli",
    "cli.views",
    "kubernetes.agent",
    "kubernetes.device_plugin kubernetes.dra",
    "kubernetes compose ray slurm",
    "cdi",
    "launch diagnostics metrics profiles guard",
    "suspend",
    "admission",
    "inventory",
    "config engine slices",
    "limits",
    "host",
    "storage options",
    "console",
    "util",
    "kubernetes.proto __init__ abi errors",
)
HEIGHTS = {name: -number for number, floor in enumerate(FLOORS) for name in floor.split()}


def modules() -> list[Path]:
    """Return every file below vgpurun/, by its path there."""
    return [path.relative_to(SOURCES) for path in sorted(SOURCES.rglob("*.py"))]


def imported(source: str) -> Iterator[str]:
    """Yield what a file imports of vgpurun, by its name there (`host.gpus`), wherever in the file that is."""
    for node in ast.walk(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        yield from (name.removeprefix("vgpurun.") for name in names if name.startswith("vgpurun."))


@cache
def package(name: str) -> str:
    """Return the folder that a name is in, as FLOORS has it; a module of vgpurun/ itself stands for itself."""
    first, *others = name.split(".")
    if not (SOURCES / first).is_dir():
        return first if (SOURCES / f"{first}.py").exists() else "__init__"
    for other in others:
        if not (SOURCES / first.replace(".", "/") / other).is_dir():
            break
        first += f".{other}"
    return first


def test_every_package_has_a_floor() -> None:
    assert {package(".".join(path.with_suffix("").parts)) for path in modules()} == set(HEIGHTS)


def test_no_import_runs_up() -> None:
    arrows = []
    for path in modules():
        here = package(".".join(path.with_suffix("").parts))
        for name in imported((SOURCES / path).read_text()):
            there = package(name)
            if there != here and HEIGHTS[there] >= HEIGHTS[here]:
                arrows.append(f"{path} imports {name}, which is above it")
    assert not arrows, "\n".join(arrows)
