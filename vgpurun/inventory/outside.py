"""The programs on the GPUs that no container or process of vgpurun started: whose they are, and what they hold.

NVML names them by their PIDs; the kernel says the rest, to every user: owner, name, cgroup and parents.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import GpuError
from vgpurun.host.gpus import Gpu, read_processes
from vgpurun.util.printable import printable
from vgpurun.util.users import name_of

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_PARENT = re.compile(r"\) \S ([0-9]+) ")  # behind the name in parentheses, which may have any character
_MOST_PARENTS = 64


class Outsider(NamedTuple):
    """A program outside vgpurun on one GPU, and the memory that NVML says it holds there."""

    pid: int
    user: str
    command: str
    held_bytes: int


def outsiders(gpus: Sequence[Gpu], container_ids: set[str], local_pids: set[int]) -> dict[str, list[Outsider]]:
    """Return by UUID who else is on each GPU, the largest first; nobody on one whose driver does not list programs."""
    found: dict[str, list[Outsider]] = {}
    for gpu in gpus:
        with suppress(GpuError):
            others = _others(read_processes(gpu), container_ids, local_pids)
            found[gpu.uuid] = sorted(others, key=lambda each: each.held_bytes, reverse=True)
    return found


def _others(processes: Mapping[int, int], container_ids: set[str], local_pids: set[int]) -> Iterator[Outsider]:
    for pid, held_bytes in processes.items():
        process = Path("/proc", str(pid))
        try:
            is_own = not container_ids.isdisjoint(_CONTAINER_ID.findall((process / "cgroup").read_text()))
            if is_own or not local_pids.isdisjoint(_line_of(pid)):
                continue
            command, user = printable((process / "comm").read_text().rstrip("\n")), name_of(process.stat().st_uid)
        except OSError:  # it has ended, or is in another PID namespace than this process
            command, user = "", ""
        yield Outsider(pid, user, command, held_bytes)


def _line_of(pid: int) -> Iterator[int]:
    """Yield a process and those that it descends from."""
    for _ in range(_MOST_PARENTS):
        yield pid
        match = _PARENT.search(Path("/proc", str(pid), "stat").read_text(errors="replace"))
        pid = int(match.group(1)) if match else 0
        if pid <= 1:
            return
