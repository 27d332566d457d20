"""The targets of a suspension: containers, slices with all that has joined them, and local processes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vgpurun.errors import SliceError, SuspendError
from vgpurun.inventory.reservations import local_processes
from vgpurun.limits.quota import Quota
from vgpurun.slices import store

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer
    from vgpurun.engine.containers import ContainerEngine


class Target(NamedTuple):
    """A container, a slice or a local process; `id` is its identity among all holders of a GPU."""

    id: str
    name: str
    limits_folder: Path


def container_named(name: str, engine: "ContainerEngine", others: bool = False) -> Target:
    """Return a container that runs, another user's only by `others`.

    Raises ContainerError, EngineError, and SuspendError for one that does not run or is in a slice.
    """
    found = engine.find_own(name, others)
    if found.status not in ("running", "paused"):
        raise SuspendError(f"{found.name} does not run, and so has no GPU; vgpurun start gives it the ones that it had")
    if found.slice_name:
        raise SuspendError(
            f"{found.name} is in slice {found.slice_name}; name that, as a whole: --slice {found.slice_name}"
        )
    return Target(found.id, found.name, found.limits_folder)


def slice_named(name: str) -> Target:
    """Return a slice. Raises SliceError, and SuspendError."""
    for found in store.slices():
        if found.name == name:
            _refuse_together(f"slice {name}", found.quotas)
            return Target(found.id, f"slice {name}", found.folder)
    raise SliceError(f"there is no slice '{name}'; see them with: vgpurun slice ls")


def process_numbered(pid: str) -> Target:
    """Return a process of `vgpurun local` by its number. Raises SuspendError."""
    for holder in local_processes():
        if holder.id == pid:
            if holder.slice_folder:
                joined = Path(holder.slice_folder).name
                raise SuspendError(f"process {pid} is in slice {joined}; name that, as a whole: --slice {joined}")
            _refuse_together(holder.name, holder.quotas)
            return Target(holder.id, holder.name, holder.folder)
    if not pid.isdecimal():
        raise SuspendError(f"--process '{pid}' is not a PID; see those of vgpurun local with: vgpurun smi")
    raise SuspendError(f"process {pid} was not started by vgpurun local, or has ended")


def _refuse_together(name: str, quotas: Sequence[tuple[str, Quota]]) -> None:
    if any(quota.together for _, quota in quotas):
        raise SuspendError(
            f"{name} works on its GPUs at the same time as others, by MPS, and stays there until it ends"
        )


def of_containers(containers: Sequence["VgpurunContainer"]) -> list[Target]:
    """Return what of these containers can be a target: those that are in no slice."""
    return [Target(each.id, each.name, each.limits_folder) for each in containers if not each.slice_name]


def slices_and_processes() -> Iterator[Target]:
    """Yield what runs, or may run, without an engine. Raises nothing."""
    for found in (each for each in store.slices() if not each.together):
        yield Target(found.id, f"slice {found.name}", found.folder)
    for holder in local_processes():
        if not holder.slice_folder and not any(quota.together for _, quota in holder.quotas):
            yield Target(holder.id, holder.name, holder.folder)


def named(
    containers: Sequence[str],
    slices: Sequence[str],
    processes: Sequence[str],
    engine: "ContainerEngine | None",
    others: bool = False,
) -> list[Target]:
    """Return all that a command names. Raises VgpurunError for the first that there is not."""
    found = [container_named(name, engine, others) for name in containers if engine is not None]
    return [*found, *map(slice_named, slices), *map(process_numbered, processes)]
