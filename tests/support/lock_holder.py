"""Another process that has a lock, and does not let go of it by itself."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.programs import text_of


def _hold() -> None:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(60)


@contextmanager
def held_by_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has the flock of a file or folder; it is killed at the end, if it was not before."""
    process = subprocess.Popen([sys.executable, "-c", text_of(_hold), path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()
