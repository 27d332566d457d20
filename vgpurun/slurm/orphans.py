"""Ends what has outlived its job. Slurm loses sight of a task whose slurmstepd was killed."""

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import CgroupError
from vgpurun.host import freezer
from vgpurun.host.mounted import place_of
from vgpurun.slices.members import usages_of
from vgpurun.slices.store import Slice

_PATIENCE_S = 5.0
_RETRY_S = 0.05


def kill(found: Slice, proc: Path = Path("/proc")) -> list[int]:
    """Kill what runs in a slice, wait until it has ended, and return it. Raises nothing."""
    killed: dict[int, None] = {}
    give_up_at = time.monotonic() + _PATIENCE_S
    while (there := list(_processes_of(found, proc))) and time.monotonic() < give_up_at:
        for pid in there:
            killed[pid] = None
            with suppress(OSError, CgroupError):
                os.kill(pid, signal.SIGKILL)
                _thaw(pid, proc)
        time.sleep(_RETRY_S)
    return list(killed)


def _thaw(pid: int, proc: Path) -> None:
    """Let a killed process of a paused container end: on cgroup v1 it would wait. Raises CgroupError and OSError."""
    for container in freezer.container_ids(freezer.paths_of(pid, proc)):
        cgroup = freezer.find(pid, container, proc)
        if cgroup and cgroup.is_frozen():
            cgroup.thaw()


def _processes_of(found: Slice, proc: Path) -> Iterator[int]:
    """Yield those that have its usage file in place, or open for writing: what only looks reads it."""
    mounted, usage = place_of(found.usage), _file_at(found.usage)
    for process in proc.iterdir() if usage else ():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        if mounted in usages_of(process) or usage in map(_file_at, _written_files(process)):
            yield int(process.name)


def _file_at(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _written_files(process: Path) -> Iterator[Path]:
    with suppress(OSError):
        for each in os.scandir(process / "fd"):
            with suppress(OSError):
                is_written = os.lstat(each.path).st_mode & stat.S_IWUSR
                if is_written and os.readlink(each.path).endswith("/usage"):  # noqa: PTH115
                    yield Path(each.path)
