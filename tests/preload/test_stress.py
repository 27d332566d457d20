"""Much at once, under sanitizers: no error, no race, nothing used after its end, nothing left over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from support import CHECKOUT

LIMITS = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "70"}
SANITIZERS = {"address": ("libasan.so", "address,undefined"), "thread": ("libtsan.so", "thread")}


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The library with sanitizers, built once for each kind."""

    @cache
    def build(kinds: str) -> Path:
        folder = tmp_path_factory.mktemp("library")
        flags = f"-O1 -g -fsanitize={kinds}"
        make = ["make", "-s", "-j2", "-C", str(CHECKOUT / "lib"), "library", f"BUILD={folder}", f"CFLAGS={flags}"]
        subprocess.run([*make, f"PYTHON={sys.executable}"], check=True)
        return folder / "libvgpu.so"

    return build


# Each with its arguments.
PROGRAMS = {"comings_and_goings.c": ["3", "1"], "churn.c": ["3", "1", "8"]}
CASES = [*((source, False) for source in PROGRAMS), ("comings_and_goings.c", True)]


@pytest.mark.parametrize(("source", "profiled"), CASES)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_many_threads(
    sandbox: Sandbox,
    compile_c: Callable[..., Path],
    sanitized: Callable[[str], Path],
    sanitizer: str,
    source: str,
    profiled: bool,
) -> None:
    runtime_name, kinds = SANITIZERS[sanitizer]
    command = ["gcc", f"-print-file-name={runtime_name}"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"this gcc has no {runtime_name}")
    library = sanitized(kinds)
    program = compile_c(source, "-g", f"-fsanitize={kinds}", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    if profiled:
        options["PFLOG"] = str(sandbox.folder)
    result = sandbox.run([program, *PROGRAMS[source]], LD_PRELOAD=f"{runtime}:{library}", **LIMITS, **options)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.endswith("\n"), "it came to its end"
