"""Finds the processes of a container, a slice or a local program that use GPUs, as this host numbers them.

The slots of the usage file name them by PIDs of the container's PID namespace, and NVML lists programs without our
library, too. The container writes the slots, so the kernel has the last word: a process belongs to a container if it
has the usage file mounted, or has one of the two files mapped and is of the right user (all users can read limits).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import OthersProcessError, SliceError, SuspendError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu, read_processes
from vgpurun.host.mapped import as_mapped, mapped_files
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.slices import store
from vgpurun.slices.members import usage_place, usages_of
from vgpurun.util.process_identity import ProcessIdentity, all_pids, identify, pid_inside, pid_namespace, uid_of
from vgpurun.util.users import name_of

_PROC = Path("/proc")


def held_bytes(processes: Sequence[ProcessIdentity], gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return what NVML says that processes hold of each GPU, by UUID. Raises GpuError."""
    return sum_by_gpu(held_by_each(processes, gpus), processes, gpus)


def sum_by_gpu(
    held: Mapping[ProcessIdentity, Mapping[str, int]], processes: Sequence[ProcessIdentity], gpus: Sequence[Gpu]
) -> dict[str, int]:
    """Return how much these processes hold of each GPU, by UUID; `held` is that of all processes."""
    return {gpu.uuid: sum(held[each].get(gpu.uuid, 0) for each in processes) for gpu in gpus}


def held_by_each(processes: Sequence[ProcessIdentity], gpus: Sequence[Gpu]) -> dict[ProcessIdentity, dict[str, int]]:
    """Return how much each process holds of each GPU, without GPUs of which it holds nothing. Raises GpuError."""
    listed = {gpu.uuid: read_processes(gpu) for gpu in gpus}
    return {
        each: {uuid: found[each.pid] for uuid, found in listed.items() if found.get(each.pid)} for each in processes
    }


def find(folder: Path, gpus: Sequence[Gpu]) -> list[ProcessIdentity]:
    """Return the processes below a state folder that use one of these GPUs.

    Raises GpuError, and SuspendError where some of them are another user's: those would be left out.
    """
    own = {pid for pid in _with_slots(folder / "run" / "usage") if belongs_to(pid, folder)}
    for pid in set[int]().union(*(read_processes(gpu) for gpu in gpus)) - own:
        with suppress(SuspendError):  # a stranger, which does not count here
            if belongs_to(pid, folder):
                own.add(pid)
    return [found for pid in sorted(own) if (found := identify(pid))]


def find_all(folder: Path, gpus: Sequence[Gpu], driver: Checkpoints) -> list[ProcessIdentity]:
    """Return the same processes and those that have started CUDA but hold no GPU memory yet. Raises like find().

    It looks at each process of the host.
    """
    found = {*find(folder, gpus)}
    for pid in sorted(all_pids()):
        with suppress(SuspendError):  # a stranger
            if belongs_to(pid, folder) and driver.state(pid) is not None and (process := identify(pid)):
                found.add(process)
    return sorted(found)


def on_gpus(processes: Sequence[ProcessIdentity], gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those GPUs on which NVML lists one of the processes. Raises GpuError."""
    pids = {each.pid for each in processes}
    return [gpu for gpu in gpus if not pids.isdisjoint(read_processes(gpu))]


def _with_slots(usage: Path) -> Iterator[int]:
    counted: set[tuple[int, int]] = set()
    with suppress(OSError, BrokenUsageError):
        counted.update(read_counted(usage))
    here = pid_namespace()
    yield from (pid for namespace, pid in counted if namespace == here)
    elsewhere = {each for each in counted if each[0] != here}
    namespaces = {namespace for namespace, _ in elsewhere}
    are_unseen = False
    for each in all_pids() if elsewhere else ():
        try:
            if (namespace := pid_namespace(_PROC / str(each))) in namespaces:
                own = namespace, pid_inside(each)
                if own in elsewhere:
                    elsewhere.remove(own)
                    yield each
        except PermissionError:
            are_unseen = True
        except (OSError, ValueError):
            continue  # has ended
    if elsewhere and are_unseen:
        raise OthersProcessError(f"the processes with the limits in {usage.parents[1]} are another user's; use sudo")


def belongs_to(pid: int, folder: Path) -> bool:
    """Ask the kernel whether a process is below a state folder. Raises SuspendError where this user may not."""
    process = _PROC / str(pid)
    with suppress(OSError):
        # The mounts of the host itself, which may be many, are no container's.
        is_of_host = (process / "ns" / "mnt").readlink() == (_PROC / "self" / "ns" / "mnt").readlink()
        if not is_of_host and (usage := usage_place(folder)) and usage in usages_of(process):
            return True
    try:
        mapped = mapped_files(process)
        has_limits = as_mapped(folder / "etc" / "limits") in mapped
        has_usage = as_mapped(folder / "run" / "usage") in mapped
        return (has_limits or has_usage) and _is_for(folder, uid_of(pid), has_usage)
    except PermissionError:
        raise OthersProcessError(f"process {pid} is another user's; use sudo") from None
    except (OSError, ValueError):
        return False  # has ended


def _is_for(folder: Path, uid: int, has_usage: bool) -> bool:
    """Ask whether a user's process may be below a state folder, whatever it has mapped. Raises OSError.

    A process may map a file that another user has sent it. A process that root started may have opened the usage file
    before it became another user's.
    """
    status = folder.stat()
    with suppress(SliceError):
        if folder.parent == store.slices_folder():
            is_writer = (folder / "run" / "usage").stat().st_uid == uid
            return uid == 0 or is_writer or store.find(folder.name).may_use(name_of(uid))
    return uid == status.st_uid or (status.st_uid == 0 and has_usage)
