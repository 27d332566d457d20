"""Finds the processes of a container, a slice or a local program that use GPUs, as this host numbers them.

The slots of the usage file say which, by PIDs that count in the container's PID namespace, and NVML lists those without
our library as well. The container writes the slots, so the kernel has the last word: a process belongs to it that has
its limits file mapped, or its usage file mounted.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun import abi
from vgpurun.host.gpus import Gpu, read_processes
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.util.kernel_text import read_lines

_NAMESPACE = re.compile(r"pid:\[([0-9]+)\]")
_PROC = Path("/proc")


class Process(NamedTuple):
    """A process, and when it started in the kernel's ticks: another one that gets its number later is not it."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return started(self.pid) == self.started


def started(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot, or None for one that has ended."""
    with suppress(OSError, ValueError, IndexError):
        state, *rest = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if state in "ZX" else int(rest[18])
    return None


def held_bytes(processes: Sequence[Process], gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return what NVML says that processes hold of each GPU, by UUID. Raises GpuError."""
    pids = {each.pid for each in processes}
    listed = {gpu.uuid: read_processes(gpu) for gpu in gpus}
    return {uuid: sum(held for pid, held in found.items() if pid in pids) for uuid, found in listed.items()}


def find(folder: Path, gpus: Sequence[Gpu]) -> list[Process]:
    """Return the processes below a state folder that use one of these GPUs. Raises GpuError."""
    pids = set(_with_slots(folder / "run" / "usage")).union(*(read_processes(gpu) for gpu in gpus))
    own = sorted(pid for pid in pids if belongs_to(pid, folder))
    return [Process(pid, moment) for pid in own if (moment := started(pid)) is not None]


def on_gpus(processes: Sequence[Process], gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those GPUs on which NVML lists one of the processes. Raises GpuError."""
    pids = {each.pid for each in processes}
    return [gpu for gpu in gpus if not pids.isdisjoint(read_processes(gpu))]


def _with_slots(usage: Path) -> Iterator[int]:
    by_namespace: dict[int, set[int]] = {}
    with suppress(OSError, BrokenUsageError):
        for namespace, pid in read_counted(usage):
            by_namespace.setdefault(namespace, set()).add(pid)
    yield from by_namespace.pop(_namespace_of("self") or 0, ())
    for process in _PROC.iterdir() if by_namespace else ():
        own = by_namespace.get(_namespace_of(process.name) or 0, ()) if process.name.isdecimal() else ()
        with suppress(OSError, StopIteration, ValueError):
            if own and _number_in_namespace(process) in own:
                yield int(process.name)


def _namespace_of(process: str) -> int | None:
    with suppress(OSError):
        match = _NAMESPACE.fullmatch(str((_PROC / process / "ns" / "pid").readlink()))
        return int(match.group(1)) if match else None
    return None


def _number_in_namespace(process: Path) -> int:
    return int(next(line for line in read_lines(process / "status") if line.startswith("NSpid:")).split()[-1])


def belongs_to(pid: int, folder: Path) -> bool:
    """Ask the kernel whether a process is below a state folder. Raises nothing."""
    process = _PROC / str(pid)
    with suppress(OSError):
        usage, seen = (folder / "run" / "usage").stat(), (process / "root" / abi.CONTAINER_USAGE.lstrip("/")).stat()
        if (usage.st_dev, usage.st_ino) == (seen.st_dev, seen.st_ino):
            return True
    with suppress(OSError):
        status = (folder / "etc" / "limits").stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        for line in read_lines(process / "maps"):
            if line.split(maxsplit=5)[3:5] == [device, str(status.st_ino)]:
                return True
    return False
