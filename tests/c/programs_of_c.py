"""The programs of this folder, which its Makefile builds."""

from __future__ import annotations

import os
import subprocess
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
    with one_at_a_time(BUILD):
        make = ["make", "-s", "-j2", "-C", str(CHECKOUT / "tests" / "c"), f"KIND={kind}", program]
        result = subprocess.run(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout
    return BUILD / kind / program
