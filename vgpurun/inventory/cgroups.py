"""The cgroups of containers, and the driver's own memory limits there."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from vgpurun.errors import EnforceError, GpuError
from vgpurun.host import memory_limits
from vgpurun.host.freezer import CONTAINER_ID
from vgpurun.host.gpus import Gpu
from vgpurun.host.memory_limits import MemoryLimits
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.driver_wall import settle

# By a container's id and a GPU's UUID: what the driver itself holds it to.
DriverLimits: TypeAlias = Mapping[tuple[str, str], MemoryLimits]

_ID_LENGTH = 64  # a container's


def cgroups_of(ids: Collection[str], root: Path = memory_limits.CGROUPS) -> dict[str, Path]:
    """Return the cgroups of these containers and local processes, by their ids.

    Every engine has a container's in the folder's name; that of a process is its PID. A user to whom a part of the
    hierarchy was given may name folders like that too, so those are not looked through.
    """
    own = {each: memory_limits.cgroup_of(int(each)) for each in ids if each.isdecimal() and len(each) < _ID_LENGTH}
    found = {each: cgroup for each, cgroup in own.items() if cgroup is not None}
    if len(own) < len(ids) and (root / "cgroup.controllers").exists():
        for folder, names, _ in os.walk(root):
            if _owner(folder) != _owner(root):
                names.clear()
            for name in names:
                match = CONTAINER_ID.search(name)
                if match and match.group() in ids:
                    found.setdefault(match.group(), Path(folder, name))
    return found


def cgroup_around(pid: int, container: str) -> Path | None:
    """Return the cgroup of a container by one of its processes, which may be in one below; None where it has none.

    So a process that only says to be of a container leads to a cgroup of its own.
    """
    own = memory_limits.cgroup_of(pid)
    places = [] if own is None or not container else [*reversed(own.parents), own]
    return next((each for each in places if container in each.name), None)


def _owner(folder: str | Path) -> int | None:
    with suppress(OSError):  # already gone
        return Path(folder).stat().st_uid
    return None


def driver_limits(ids: Collection[str], gpus: Sequence[Gpu]) -> DriverLimits:
    """Return what the driver itself holds containers to; nothing of those that it does not. Raises nothing."""
    found: dict[tuple[str, str], MemoryLimits] = {}
    if ids:
        able = [gpu for gpu in gpus if not memory_limits.lacking([gpu])]
        for container, cgroup in cgroups_of(ids).items() if able else ():
            found.update(_limits_of(container, cgroup, able))
    return found


def settle_all(holders: Iterable[Holder], gpus: Sequence[Gpu]) -> list[str]:
    """Set the driver's own limits of running containers to what these are held to; return what could not be.

    That is what lowered a limit below what was in use then, or was another user's than root. Raises nothing.
    """
    quotas = {each.id: each.quotas for each in holders if each.kind == "container"}
    able = {gpu.uuid: gpu for gpu in gpus if not memory_limits.lacking([gpu])}
    unsettled = []
    for container, cgroup in cgroups_of(quotas).items() if able else ():
        wanted = [(able[uuid], quota) for uuid, quota in quotas[container] if uuid in able]
        unsettled += [f"{container[:12]}: {left}" for left in settle([cgroup], wanted)]
    return unsettled


def _limits_of(container: str, cgroup: Path, gpus: Iterable[Gpu]) -> DriverLimits:
    found = {}
    for gpu in gpus:
        try:
            limits = memory_limits.read(gpu, cgroup)
        except (EnforceError, GpuError):
            continue
        if limits.most_bytes is not None:
            found[container, gpu.uuid] = limits
    return found
