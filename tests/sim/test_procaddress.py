"""cuGetProcAddress, and the list of exports behind it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from itertools import product
from pathlib import Path

import pytest
from simulated import Machine, driver

from cuda_driver import byref
from support import CHECKOUT

SUCCESS, NOT_FOUND, TOO_OLD = 0, 1, 2
ROW = re.compile(r"(SHARED|PER_THREAD)\((\w+), (\w+), (\d+)\)")


def rows() -> list[tuple[str, str, str, int]]:
    text = (CHECKOUT / "lib" / "sim" / "exports.h").read_text()
    return [(kind, name, symbol, int(since)) for kind, name, symbol, since in ROW.findall(text)]


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuLaunchKernel", 13000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 13000, 1, "cuLaunchKernel"),
        ("cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
        ("cuLaunchKernel", 4000, 2, "cuLaunchKernel"),
        ("cuStreamBeginCapture", 10000, 2, "cuStreamBeginCapture_ptsz"),
        ("cuStreamBeginCapture", 13000, 2, "cuStreamBeginCapture_v2_ptsz"),
        ("cuMemcpyHtoD", 13000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 13000, 0, "cuMemcpyHtoD_v2"),
        ("cuMemFree", 13000, 2, "cuMemFree_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
    ],
)
def test_the_right_variant(machine: Machine, name: str, version: int, flags: int, symbol: str) -> None:
    def program() -> None:
        assert driver.proc_address(name, version, flags) == (driver.address_of(symbol), 0)

    machine.python(program, start=False)


def test_what_there_is_not(machine: Machine) -> None:
    def program() -> None:
        assert driver.proc_address("cuNothing") == (0, NOT_FOUND)
        assert driver.proc_address("cuLaunchKernelEx", 11000) == (0, TOO_OLD)
        out = ctypes.c_void_p(1)
        assert driver.result("cuGetProcAddress", b"cuNothing", byref(out), 12000, 0) == "CUDA_ERROR_NOT_FOUND"
        assert out.value is None
        for name, where, version, flags in [
            (None, byref(out), 12000, 0),
            (b"cuInit", None, 12000, 0),
            (b"cuInit", byref(out), 13010, 0),
            (b"cuInit", byref(out), 12000, 4),
        ]:
            answer = driver.result("cuGetProcAddress_v2", name, where, version, flags, None)
            assert answer == "CUDA_ERROR_INVALID_VALUE", (name, where, version, flags)

    machine.python(program, start=False)


def test_all_answers_are_distinct_exports(machine: Machine) -> None:
    names = sorted({name for _, name, _, _ in rows()})
    versions = sorted({since for _, _, _, since in rows()})
    symbols = [symbol for _, _, symbol, _ in rows()]

    def program() -> None:
        known = {driver.address_of(symbol) for symbol in symbols}
        assert len(known) == len(symbols)
        asked = product(names, versions, (0, 1, 2))
        answers = {driver.proc_address(name, version, flags)[0] for name, version, flags in asked} - {0}
        assert answers <= known
        assert len(answers) == len(known), "each export is somebody's answer"

    machine.python(program, start=False)


def test_the_list_is_what_the_library_exports(simulated_driver: Path) -> None:
    nm = subprocess.run(
        ["nm", "-D", "--defined-only", simulated_driver / "libcuda.so.1"], capture_output=True, text=True, check=True
    )
    exported = {line.split()[2] for line in nm.stdout.splitlines()}
    assert exported == {symbol for _, _, symbol, _ in rows()} | {"ioctl", "openat"}, "for the control device"


def test_the_versions_are_those_of_the_headers(cuda_includes: list[str]) -> None:
    """cudaTypedefs.h names a type PFN_<name>_v<version> for each variant."""
    headers = [Path(flag[2:]) / "cudaTypedefs.h" for flag in cuda_includes]
    text = "".join(header.read_text() for header in headers if header.exists())
    if not text:
        pytest.skip("the headers have no cudaTypedefs.h")
    declared = set(re.findall(r"\bPFN_(cu\w+)\)", text))
    for kind, name, symbol, since in rows():
        suffix = re.search(r"_pt[ds][sz]$", symbol)
        assert bool(suffix) == (kind == "PER_THREAD")
        assert f"{name}_v{since}{suffix.group() if suffix else ''}" in declared, symbol
