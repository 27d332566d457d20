"""Says beforehand why processes cannot be taken off their GPUs, so that they are left as they are."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import SuspendError
from vgpurun.limits.quota import show_size
from vgpurun.suspend.processes import Process
from vgpurun.util.kernel_text import read_lines

_AVAILABLE = re.compile(r"^MemAvailable: +([0-9]+) kB$", re.MULTILINE)
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_NCCL = "/libnccl.so"


def check(name: str, processes: Sequence[Process], needed_bytes: int, gpu_count: int) -> None:
    """Raise SuspendError where the memory of processes has no place on the host, or they talk across GPUs."""
    available_bytes = _host_bytes()
    if available_bytes is not None and needed_bytes > available_bytes:
        raise SuspendError(
            f"{name} holds {show_size(needed_bytes)} of GPU memory, and this host has {show_size(available_bytes)} of "
            "memory left; make room there, or let it run"
        )
    for each in processes:
        left_bytes = _left_in_cgroups(each.pid)
        if left_bytes is not None and needed_bytes > left_bytes:
            raise SuspendError(
                f"{name} holds {show_size(needed_bytes)} of GPU memory, and its own limit leaves "
                f"{show_size(left_bytes)} of host memory; raise that (docker update --memory), or let it run"
            )
        if gpu_count > 1 and _has_mapped(each.pid, _NCCL):
            raise SuspendError(
                f"{name} uses {gpu_count} GPUs with NCCL, and the driver does not bring back what talks across GPUs"
            )


def check_runs(name: str, processes: Sequence[Process]) -> None:
    """Raise SuspendError for a process that is stopped: the driver's part in it could not do anything."""
    for each in processes:
        if _is_stopped(each.pid) or _is_frozen(each.pid):
            raise SuspendError(
                f"process {each.pid} of {name} is stopped; let it go on first: vgpurun unpause or thaw, or kill -CONT"
            )


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    return False


def _is_frozen(pid: int) -> bool:
    """Ask the cgroups of a process, of version 2 or 1."""
    for controllers, path in _cgroups_of(pid):
        with suppress(OSError):
            if not controllers and "frozen 1" in (_CGROUPS / path / "cgroup.events").read_text():
                return True
            if controllers == "freezer" and "FROZEN" in (_CGROUPS / "freezer" / path / "freezer.state").read_text():
                return True
    return False


def _cgroups_of(pid: int) -> list[tuple[str, str]]:
    """Return the cgroups of a process: their controllers, none for version 2, and their paths without a slash."""
    with suppress(OSError):
        lines = read_lines(_PROC / str(pid) / "cgroup")
        return [(controllers, path.lstrip("/")) for _, controllers, path in (line.split(":", 2) for line in lines)]
    return []


def _host_bytes() -> int | None:
    with suppress(OSError):
        match = _AVAILABLE.search((_PROC / "meminfo").read_text())
        return int(match.group(1)) << 10 if match else None
    return None


def _left_in_cgroups(pid: int) -> int | None:
    """Return the least that a memory cgroup above a process leaves it, of version 2 or 1; None for no limit."""
    left: list[int] = []
    for controllers, path in _cgroups_of(pid):
        if controllers in ("", "memory"):
            is_first = controllers == "memory"
            folder = (_CGROUPS / "memory" if is_first else _CGROUPS) / path
            names = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
            left += [found for place in (folder, *folder.parents) if (found := _left_in(place, *names)) is not None]
    return min(left, default=None)


def _left_in(folder: Path, limit: str, usage: str) -> int | None:
    with suppress(OSError, ValueError):
        return max(0, int((folder / f"memory.{limit}").read_text()) - int((folder / f"memory.{usage}").read_text()))
    return None


def _has_mapped(pid: int, part: str) -> bool:
    with suppress(OSError):
        return part in (_PROC / str(pid) / "maps").read_text(errors="replace")
    return False
