"""The packages of vgpurun/ are floors: each imports only what is below it, so that no circle can come to be.

An import inside a function or under TYPE_CHECKING counts like any other: to read the file one has to know both ends.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import vgpurun
from support import CHECKOUT

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
    "suspend.agent",
    "suspend",
    "admission",
    "inventory",
    "config engine slices together",
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
    for node in statements(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        yield from (name.removeprefix("vgpurun.") for name in names if name.startswith("vgpurun."))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements: a tenth of what ast.walk() finds, which is expressions mostly."""
    for each in (
        each for field in ("body", "handlers", "orelse", "finalbody", "cases") for each in getattr(tree, field, ())
    ):
        yield each
        yield from statements(each)


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


def patched(source: str) -> Iterator[str]:
    """Yield what a test patches of modules that it has not imported from here: those of others."""
    tree = ast.parse(source)
    others = {
        (each.asname or each.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module in sys.stdlib_module_names)
        for each in node.names
        if not each.name.startswith("vgpurun")
    }
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in ("setattr", "setitem", "delattr", "object"):
            target = ast.unparse(node.args[0])
            if target.partition(".")[0] in others or (target[0] in "'\"" and "vgpurun" not in target):
                yield ast.unparse(node)
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        if ast.unparse(node.targets[0]).startswith("sys.modules["):
            yield ast.unparse(node)


def test_nobody_else_s_module_is_patched_or_faked() -> None:
    """Neither here nor in tests: what it says then is true of the patch alone, as the login for registries was."""
    texts = {file: file.read_text() for file in (*SOURCES.rglob("*.py"), *(CHECKOUT / "tests").rglob("*.py"))}
    hints = ("setattr(", "setitem(", "delattr(", "patch.object(", "sys.modules[")
    found = [
        f"{file}: {each}"
        for file, text in texts.items()
        if any(hint in text for hint in hints)
        for each in patched(text)
    ]
    assert not found, "\n".join(found)


def test_what_is_patched_is_found() -> None:
    sources = (
        "import os\nm.setattr(os, 'a', 1)",
        "m.setattr('os.a', 1)",
        "from pathlib import Path\nm.setattr(Path, 'a', 1)",
        "sys.modules['a'] = None",
    )
    assert all(len(list(patched(source))) == 1 for source in sources)
    assert list(patched("from vgpurun import errors\nm.setattr(errors, 'a', 1)")) == []


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
