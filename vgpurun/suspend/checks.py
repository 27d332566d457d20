"""Says beforehand why processes cannot be taken off their GPUs, so that they are left as they are."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import NoRoomError, SuspendError
from vgpurun.host.freezer import paths_of
from vgpurun.host.gpus import Gpu, read_driver, read_use
from vgpurun.host.stopped import CGROUPS, is_stopped
from vgpurun.limits.quota import show_size
from vgpurun.limits.usage_file import shares_memory
from vgpurun.suspend.processes import held_bytes
from vgpurun.util.kernel_text import read_lines
from vgpurun.util.process_identity import ProcessIdentity

_AVAILABLE = re.compile(r"^MemAvailable: +([0-9]+) kB$", re.MULTILINE)
_PROC = Path("/proc")
_FILE_PAGES = ("inactive_file", "active_file")
_NCCL = "/libnccl.so"
_FIRST_WITH_IPC = 610
_MEMORY_COMES_BACK_S = 2.0  # a process that just ended has not returned all its memory yet
_POLL_INTERVAL_S = 0.05


def check(name: str, held: Mapping[ProcessIdentity, Mapping[str, int]]) -> None:
    """Raise SuspendError where the memory of processes has no place on the host, or they may talk across GPUs.

    `held` is what each of them holds of GPUs, by UUID.
    """
    needed_bytes = sum(sum(each.values()) for each in held.values())
    gpu_count = len({uuid for each in held.values() for uuid in each})
    available_bytes = _host_bytes()
    if available_bytes is not None and needed_bytes > available_bytes:
        raise SuspendError(
            f"{name} holds {show_size(needed_bytes)} of GPU memory, and this host has {show_size(available_bytes)} of "
            "memory left; make room there, or let it run"
        )
    for needed_below_bytes, left_bytes in _in_cgroups(held):
        if needed_below_bytes > left_bytes:
            raise SuspendError(
                f"{name} holds {show_size(needed_below_bytes)} of GPU memory, and its own limit leaves "
                f"{show_size(left_bytes)} of host memory; raise that (docker update --memory), or let it run"
            )
    for each in held:
        if gpu_count > 1 and _has_mapped(each.pid, _NCCL):
            raise SuspendError(
                f"{name} has loaded NCCL and uses {gpu_count} GPUs; the driver does not bring back what talks across "
                "GPUs, and whether it does is not seen from outside"
            )


def check_alone(name: str, limits_folder: Path, gpus: Sequence[Gpu]) -> None:
    """Raise SuspendError where a process shares memory with others: drivers before 610 take both off the GPU, and do
    not bring back the one that has opened the other's.
    """
    if not shares_memory(limits_folder / "run" / "usage"):
        return
    if int(read_driver(gpus).version.split(".")[0]) < _FIRST_WITH_IPC:
        raise SuspendError(
            f"a process of {name} shares GPU memory with others (CUDA IPC), and a driver before {_FIRST_WITH_IPC} does "
            "not bring that back"
        )


def check_runs(name: str, processes: Sequence[ProcessIdentity]) -> None:
    """Raise SuspendError for a process that is stopped: the driver's part in it could not do anything."""
    for each in processes:
        if is_stopped(each.pid):
            raise SuspendError(
                f"process {each.pid} of {name} is stopped; let it go on first: vgpurun unpause or thaw, or kill -CONT"
            )


def await_memory(
    name: str, processes: Sequence[ProcessIdentity], held_before: Mapping[str, int], gpus: Sequence[Gpu]
) -> None:
    """Raise NoRoomError where a GPU has too little memory free for what is away, whoever has it.

    `held_before` is what the processes had or will have on each GPU, by UUID. A driver that finds too little never
    brings a process back.
    """
    there = held_bytes(processes, gpus)
    needed = {uuid: held - there.get(uuid, 0) for uuid, held in held_before.items()}
    chosen = [gpu for gpu in gpus if needed.get(gpu.uuid, 0) > 0]
    deadline_s = time.monotonic() + _MEMORY_COMES_BACK_S
    while True:
        uses = read_use(chosen)
        short = [
            (gpu, gpu.memory_bytes - use.memory_used_bytes)
            for gpu, use in zip(chosen, uses, strict=True)
            if gpu.memory_bytes - use.memory_used_bytes < needed[gpu.uuid]
        ]
        if not short:
            return
        if time.monotonic() > deadline_s:
            gpu, free_bytes = short[0]
            raise NoRoomError(
                f"{name} needs {show_size(needed[gpu.uuid])} of GPU {gpu.number}, and {show_size(free_bytes)} "
                "is not in use there",
                "end what is outside of vgpurun, or wait with --wait",
                gpus=[gpu.uuid],
            )
        time.sleep(_POLL_INTERVAL_S)


def _host_bytes() -> int | None:
    with suppress(OSError):
        match = _AVAILABLE.search((_PROC / "meminfo").read_text())
        return int(match.group(1)) << 10 if match else None
    return None


def _in_cgroups(held: Mapping[ProcessIdentity, Mapping[str, int]]) -> Iterator[tuple[int, int]]:
    """Yield what the processes below a memory cgroup need, and what it leaves them: for each with a limit."""
    needed: Counter[Path] = Counter()
    for process, held_by_it in held.items():
        with suppress(OSError):  # it has ended
            paths = paths_of(process.pid, _PROC)
            for controller in paths.keys() & {"", "memory"}:
                folder = CGROUPS / controller / paths[controller].lstrip("/")
                needed.update(dict.fromkeys((folder, *folder.parents), sum(held_by_it.values())))
    for folder, needed_bytes in needed.items():
        for limit, usage in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
            with suppress(OSError, ValueError):
                limit_bytes, used_bytes = (int((folder / f"memory.{name}").read_text()) for name in (limit, usage))
                yield needed_bytes, max(0, limit_bytes - used_bytes + _cached_bytes(folder))


def _cached_bytes(folder: Path) -> int:
    """Return what of a cgroup's memory are files that were read or written: the kernel lets go of them for others."""
    with suppress(OSError):
        sizes = dict(line.split(" ", 1) for line in read_lines(folder / "memory.stat"))
        names = ("total_inactive_file", "total_active_file") if "total_inactive_file" in sizes else _FILE_PAGES
        return sum(int(sizes.get(name, 0)) for name in names)
    return 0


def _has_mapped(pid: int, part: str) -> bool:
    with suppress(OSError):
        return part in (_PROC / str(pid) / "maps").read_text(errors="replace")
    return False
