"""Says beforehand why processes cannot be taken off their GPUs, so that they are left as they are."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import SuspendError
from vgpurun.limits.quota import show_size
from vgpurun.suspend.processes import Process

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


def _host_bytes() -> int | None:
    with suppress(OSError):
        match = _AVAILABLE.search((_PROC / "meminfo").read_text())
        return int(match.group(1)) << 10 if match else None
    return None


def _left_in_cgroups(pid: int) -> int | None:
    """Return the least that a memory cgroup above a process leaves it, of version 2 or 1; None for no limit."""
    left: list[int] = []
    with suppress(OSError):
        for line in (_PROC / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                is_first = controllers == "memory"
                root = _CGROUPS / "memory" if is_first else _CGROUPS
                names = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
                folder = root / path.lstrip("/")
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
