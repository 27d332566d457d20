"""The programs of tests/c, and the library with sanitizers, which the Makefile there builds."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from support import CHECKOUT, one_at_a_time

BUILD = CHECKOUT / "lib" / "build" / "c"
# Says for `make coverage` what the programs are to be compiled with, instead of what a test asks for.
KIND = os.environ.get("VGPURUN_C_KIND")


@cache
def built(program: str, kind: str) -> Path:
    """The path of a program, compiled where it is not there or older than its sources."""
    kind = KIND or kind
    path = BUILD / kind / program
    # Set by pytest-xdist: make takes its time to find nothing to do, and another process of this run may have asked it.
    run, seen = os.environ.get("PYTEST_XDIST_TESTRUNUID"), path.with_suffix(".run")
    with one_at_a_time(BUILD / kind):
        if run is None or not seen.exists() or seen.read_text() != run:
            make = [
                "make",
                "-s",
                "-j2",
                "-C",
                str(CHECKOUT / "tests" / "c"),
                f"PYTHON={sys.executable}",
                f"KIND={kind}",
            ]
            result = subprocess.run([*make, program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert result.returncode == 0, result.stdout
            seen.write_text(run or "")
    return path
