"""A C compiler's view of a header that describes the layout of a file, to be compared with the Python side."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support import unavailable

Layout = type[ctypes.Structure]


def macros(header: Path, prefix: str) -> list[str]:
    """Every value that the header defines."""
    return re.findall(rf"^#define ({prefix}\w+) ", header.read_text(), re.MULTILINE)


def structs(header: Path) -> set[str]:
    """Every structure that the header defines."""
    return set(re.findall(r"^struct (\w+) \{", header.read_text(), re.MULTILINE))


def facts(header: Path, prefix: str, layouts: Mapping[str, Layout], folder: Path) -> dict[str, str]:
    """The values of the macros, and the sizes and offsets of the structures; `folder` is for the compiler's use."""
    compiler = shutil.which("gcc") or shutil.which("clang") or unavailable("no C compiler")
    lines = [f'SHOW("{name}", {name});' for name in macros(header, prefix)]
    for name, layout in layouts.items():
        lines.append(f'SHOW("{name}", sizeof(struct {name}));')
        for field, *_ in layout._fields_:
            lines.append(f'SHOW("{name}.{field}", offsetof(struct {name}, {field}));')
            lines.append(f'SHOW("{name}.{field} size", sizeof(((struct {name} *)0)->{field}));')
    source = f"""
    #include "{header.name}"
    #include <stdio.h>
    static void show_number(const char *name, unsigned long long value) {{ printf("%s=%llu\\n", name, value); }}
    static void show_text(const char *name, const char *value) {{ printf("%s=%s\\n", name, value); }}
    #define SHOW(name, value) _Generic((value), char *: show_text, default: show_number)(name, value)
    int main(void) {{
    """
    (folder / "show.c").write_text(source + "\n".join(lines) + "\n}\n")
    command = [compiler, "-std=c11", "-I", str(header.parent), str(folder / "show.c"), "-o", str(folder / "show")]
    subprocess.run(command, check=True)
    output = subprocess.run([str(folder / "show")], check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in output.splitlines())


def compare(name: str, layout: Layout, seen_by_c: Mapping[str, str]) -> None:
    """Assert that the structure has the same size, and its fields the same places, in both languages."""
    assert str(ctypes.sizeof(layout)) == seen_by_c[name]
    for field, *_ in layout._fields_:
        descriptor = getattr(layout, field)
        assert (str(descriptor.offset), str(descriptor.size)) == (
            seen_by_c[f"{name}.{field}"],
            seen_by_c[f"{name}.{field} size"],
        )
