"""vgpurun/abi.py and lib/abi.h say the same: every constant, every size, every offset."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import vgpurun
from support import CHECKOUT, unavailable
from vgpurun import abi

HEADER = CHECKOUT / "lib" / "abi.h"
STRUCTS = {
    "vgpu_device_limit": abi.DeviceLimit,
    "vgpu_limits": abi.Limits,
    "vgpu_device_shared": abi.DeviceShared,
    "vgpu_device_usage": abi.DeviceUsage,
    "vgpu_process_usage": abi.ProcessUsage,
    "vgpu_usage": abi.Usage,
}


def macros() -> list[str]:
    """Every value that the header defines, the include guard aside."""
    return re.findall(r"^#define (VGPU_\w+) ", HEADER.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def seen_by_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a C compiler makes of the header."""
    compiler = shutil.which("gcc") or shutil.which("clang") or unavailable("no C compiler")
    lines = [f'SHOW("{name}", {name});' for name in macros()]
    for name, layout in STRUCTS.items():
        lines.append(f'SHOW("{name}", sizeof(struct {name}));')
        for field, *_ in layout._fields_:
            lines.append(f'SHOW("{name}.{field}", offsetof(struct {name}, {field}));')
            lines.append(f'SHOW("{name}.{field} size", sizeof(((struct {name} *)0)->{field}));')
    source = """
    #include "abi.h"
    #include <stdio.h>
    static void show_number(const char *name, unsigned long long value) { printf("%s=%llu\\n", name, value); }
    static void show_text(const char *name, const char *value) { printf("%s=%s\\n", name, value); }
    #define SHOW(name, value) _Generic((value), char *: show_text, default: show_number)(name, value)
    int main(void) {
    """
    folder: Path = tmp_path_factory.mktemp("abi")
    (folder / "show.c").write_text(source + "\n".join(lines) + "\n}\n")
    command = [compiler, "-std=c11", "-I", str(HEADER.parent), str(folder / "show.c"), "-o", str(folder / "show")]
    subprocess.run(command, check=True)
    output = subprocess.run([str(folder / "show")], check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in output.splitlines())


@pytest.mark.parametrize("name", [name for name in macros() if name != "VGPU_VERSION"])
def test_constants(name: str, seen_by_c: dict[str, str]) -> None:
    assert str(getattr(abi, name.removeprefix("VGPU_"))) == seen_by_c[name]


def test_version(seen_by_c: dict[str, str]) -> None:
    assert seen_by_c["VGPU_VERSION"] == vgpurun.__version__


@pytest.mark.parametrize("name", STRUCTS)
def test_layout(name: str, seen_by_c: dict[str, str]) -> None:
    layout = STRUCTS[name]
    assert str(ctypes.sizeof(layout)) == seen_by_c[name]
    for field, *_ in layout._fields_:
        descriptor = getattr(layout, field)
        assert (str(descriptor.offset), str(descriptor.size)) == (
            seen_by_c[f"{name}.{field}"],
            seen_by_c[f"{name}.{field} size"],
        )


def test_every_struct_of_the_header_is_compared() -> None:
    assert set(re.findall(r"^struct (\w+) \{", HEADER.read_text(), re.MULTILINE)) == set(STRUCTS)
