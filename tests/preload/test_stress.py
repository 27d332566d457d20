"""Much at once, under sanitizers: no error, no race, nothing used after its end, nothing left over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

pytestmark = pytest.mark.slow

LIMITS = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "70"}
SANITIZERS = {"address": "address,undefined", "thread": "thread"}


# Each with its arguments.
PROGRAMS = {"threads.c": ["3", "any"], "churn.c": ["3", "1", "8"]}
CASES = [("churn.c", False), ("threads.c", True), ("threads.c", False)]
CHOSEN = [("thread", "churn.c", False), ("address", "threads.c", True)]  # each program, and each sanitizer, once


@pytest.mark.parametrize(
    ("sanitizer", "source", "profiled"),
    [
        pytest.param(sanitizer, *case, marks=[pytest.mark.exhaustive] * ((sanitizer, *case) not in CHOSEN))
        for sanitizer, case in product(SANITIZERS, CASES)
    ],
)
def test_many_threads(
    sandbox: Sandbox,
    compile_c: Callable[..., Path],
    sanitized: Callable[[str], str],
    sanitizer: str,
    source: str,
    profiled: bool,
) -> None:
    kinds = SANITIZERS[sanitizer]
    preloaded = sanitized(kinds)
    program = compile_c(source, "-g", f"-fsanitize={kinds}", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    if profiled:
        options["PFLOG"] = str(sandbox.folder)
    result = sandbox.run([program, *PROGRAMS[source]], LD_PRELOAD=preloaded, **LIMITS, **options)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.endswith("\n"), "it came to its end"
