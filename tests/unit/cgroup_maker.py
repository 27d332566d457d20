"""Real cgroups, and real processes in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support import unavailable
from vgpurun.errors import CgroupError
from vgpurun.host.freezer import Cgroup

ID = f"{os.getpid():064x}"


@contextmanager
def cgroups(kind: str, folder: Path) -> Iterator[Callable[[str], Cgroup]]:
    """Makes cgroups of v1's freezer, or of v2."""
    place = folder / "cgroups"
    place.mkdir()
    options = ["-t", "cgroup2", "none"] if kind == "v2" else ["-t", "cgroup", "-o", "freezer", "none"]
    if subprocess.run(["mount", *options, place], capture_output=True).returncode:
        unavailable(f"no cgroup {kind} can be mounted")
    made: list[Path] = []

    def make(container: str) -> Cgroup:
        made.append(place / f"docker-{container}.scope")
        made[-1].mkdir()
        return Cgroup(made[-1], kind == "v2")

    try:
        yield make
    finally:
        for each in reversed(made):
            with suppress(OSError, CgroupError):
                Cgroup(each, kind == "v2").kill()
            for _ in range(200):
                with suppress(OSError):
                    for folder, *_ in os.walk(each, topdown=False):
                        Path(folder).rmdir()
                    break
                time.sleep(0.01)
        subprocess.run(["umount", place], check=True)


@contextmanager
def running(cgroup: Cgroup | None, *before: str) -> Iterator[int]:
    """A process that sleeps, in this cgroup; yields the number of the one that really sleeps."""
    sleep = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen(
        [*before, sys.executable, "-c", sleep], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        pid = process.pid
        with suppress(IndexError):
            while True:
                pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        try:
            if cgroup:
                (cgroup.folder / "cgroup.procs").write_text(str(pid))
            yield pid
        finally:
            if cgroup:
                with suppress(CgroupError):  # it may have been removed
                    cgroup.thaw()
            process.kill()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
