"""The programs on the GPUs: in which container or below which process of vgpurun, whose, and what they hold.

NVML names them by their PIDs; the kernel says the rest, to every user: owner, name, cgroup and parents.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun.errors import GpuError
from vgpurun.host.freezer import CONTAINER_ID
from vgpurun.host.gpus import Gpu, read_processes, read_utilization
from vgpurun.util.kernel_text import read_text
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import line_of
from vgpurun.util.users import name_of

_LAST_S = 1.0  # the time over which NVML reports use of a GPU


@dataclass(frozen=True)
class Program:
    """A program on one GPU, the memory that NVML says it holds there, and its part of the last second there.

    `used_percent` is None where NVML does not tell, as of MIG instances.
    """

    pid: int
    user: str
    command: str
    held_bytes: int
    used_percent: float | None = None


Programs = dict[str, dict[str, list[Program]]]


def programs(gpus: Sequence[Gpu], container_ids: set[str], owners: Mapping[int, str]) -> Programs:
    """Return by UUID which programs are on each GPU, the largest first, by the id of the container or local process.

    `owners`: whose a process of this host is, and what descends from it.

    Those of nobody's are under "". A GPU whose driver does not list programs is not in it.
    """
    found: Programs = {}
    for gpu in gpus:
        with suppress(GpuError):
            listed = sorted(read_processes(gpu).items(), key=lambda each: each[1], reverse=True)
            of_gpu = found.setdefault(gpu.uuid, {})
            used = _used_percents(gpu) if listed else {}
            for pid, held_bytes in listed:
                owner, user, command = _described(pid, container_ids, owners)
                used_percent = None if used is None else used.get(pid, 0.0)
                of_gpu.setdefault(owner, []).append(Program(pid, user, command, held_bytes, used_percent))
    return found


def used_percent(programs: Sequence[Program]) -> float | None:
    """Return what programs on a GPU use of its time together, or None where that is not known of all."""
    known = [each.used_percent for each in programs if each.used_percent is not None]
    return min(sum(known), 100.0) if known and len(known) == len(programs) else None


def _used_percents(gpu: Gpu) -> Mapping[int, float] | None:
    with suppress(GpuError):
        return read_utilization(gpu, _LAST_S)
    return None


def _described(pid: int, container_ids: set[str], owners: Mapping[int, str]) -> tuple[str, str, str]:
    """Return whose a process is among these, its user and its command."""
    process = Path("/proc", str(pid))
    try:
        ids = container_ids.intersection(CONTAINER_ID.findall(read_text(process / "cgroup")))
        above = "" if ids else next((owners[each] for each in line_of(pid) if each in owners), "")
        command, user = command_of(pid), name_of(process.stat().st_uid)
    except OSError:  # has ended, or is in another PID namespace than this process
        return "", "", ""
    return next(iter(ids), "") or above, user, command


def command_of(pid: int) -> str:
    """Return the name of a process's program, empty for one that has ended. Raises nothing."""
    with suppress(OSError):
        return printable(read_text(Path("/proc", str(pid), "comm")).rstrip("\n"))
    return ""
