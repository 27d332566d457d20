"""The holders of this host's GPUs: slices, containers of the engine, and local processes by their state folders.

A slice holds what it was given whether something runs in it or not; what has joined it holds nothing besides.

There is no database: what the engine and the kernel say is all there is. Local processes count if their state
folder is visible to this user: the user's own and root's. Others' show in NVML, by what they really use.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.errors import EngineError
from vgpurun.limits import limits_file
from vgpurun.limits.model import quotas_from_json
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.slices.store import Slice
from vgpurun.storage import state
from vgpurun.util.printable import printable

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer  # slow to import, and not needed by local processes

_ENDED = ("exited", "dead", "removing")
_START_TAKES_S = 60  # at the very most, from a container's making to its start
_ANSWER_TAKES_S = 5.0


@dataclass(frozen=True)
class Holder:
    """A container, a process of `vgpurun local` or a slice, and its quota on each of its GPUs, by UUID.

    `slice_folder` is that of the slice that a process has joined, `parents` are those of the shares that it is a part
    of, the next one first. `namespace` and `pod` are Kubernetes' names.
    """

    kind: str
    id: str
    name: str
    what: str
    user: str
    folder: Path
    quotas: tuple[tuple[str, Quota], ...]
    slice_folder: str = ""
    parents: tuple[Path, ...] = ()
    namespace: str = ""
    pod: str = ""

    def held_bytes(self) -> dict[str, int] | None:
        """Return what it uses now of each of its GPUs, or None when this user may not read it."""
        from vgpurun.limits import usage_file  # a launch that has room does not look

        readings = usage_file.read_usage(self.folder / "run" / "usage", [uuid for uuid, _ in self.quotas])
        return None if readings is None else {each.uuid: each.memory_used_bytes for each in readings}


def all_holders(engine: "Engine | None") -> list[Holder]:
    """Return all that hold a part of a GPU, running or about to run. Raises EngineError."""
    held = _container_holders(engine) if engine else []
    processes = [each for each in local_processes() if not each.slice_folder and not each.parents]
    return [*slice_holders(), *held, *processes]


def _container_holders(engine: "Engine") -> list[Holder]:
    alone = [each for each in engine.containers() if not each.slice_name and not each.is_part]
    return [of_container(each) for each in alone if each.status not in _ENDED and not is_abandoned(each, engine)]


def slice_holders() -> list[Holder]:
    """Return the slices of this host."""
    return [_of_slice(each) for each in store.slices() if not each.is_over()]


def is_abandoned(container: "VgpurunContainer", engine: "Engine") -> bool:
    """Whether a container was made but never started, and nobody is left who would: its launcher held the folder."""
    if container.status != "created":
        return False
    folder = Path(container.state_folder)
    try:
        if state.is_held(folder):
            return False
        can_be_seen = folder.exists()
    except PermissionError:  # in another user's home
        can_be_seen = False
    if not can_be_seen and time.time() - container.created_s <= _START_TAKES_S:
        return False  # this process may itself be in a container, and see other files than its launcher
    # Its launcher lets go once it runs, which may have happened since it was listed.
    try:
        return engine.state_of(container.id, _ANSWER_TAKES_S) in ("created", None)
    except EngineError:  # the engine is still at its start, although nobody waits for that any more
        return False


def local_processes() -> Iterator[Holder]:
    """Yield the processes of `vgpurun local` that this user can see."""
    for folder in state.folders(state.visible_roots()):
        if (state.known_owner(folder) or {}).get("engine") is not None or not state.is_alive(folder):
            continue
        owner = state.read_owner(folder)  # only now: one that is being swept is locked, and has none any more
        if not owner or owner.get("engine") is not None:
            continue
        pid = str(owner.get("pid"))
        yield Holder(
            kind="process",
            id=pid,
            name=f"process {pid}",
            what=printable(" ".join(" ".join(map(str, owner.get("command") or [])).split())),
            user=printable(str(owner.get("user", ""))),
            folder=folder,
            quotas=limits_now(folder, quotas_from_json(str(owner.get("quota")))),
            slice_folder=str(owner.get("slice", "")),
            parents=tuple(Path(str(each)) for each in owner.get("parents") or ()),
        )


def _of_slice(found: Slice) -> Holder:
    return Holder(
        kind="slice",
        id=found.id,
        name=f"slice {found.name}",
        what="slice",
        user=found.user,
        folder=found.folder,
        quotas=found.quotas,
    )


def of_container(container: "VgpurunContainer") -> Holder:
    """Return a container and its quotas now."""
    return Holder(
        kind="container",
        id=container.id,
        name=container.name,
        what=container.image,
        user=container.user,
        folder=Path(container.state_folder),
        quotas=quotas_now(container),
    )


def quotas_now(container: "VgpurunContainer") -> tuple[tuple[str, Quota], ...]:
    """Return a container's quotas: the limits may have been changed since its launch."""
    return limits_now(container.limits_folder, container.quotas)


def limits_now(folder: Path, at_launch: Sequence[tuple[str, Quota]] = ()) -> tuple[tuple[str, Quota], ...]:
    """Return the limits in a folder, or those at the launch where they cannot be read.

    Leave out GPUs of which nothing is granted: a worker of Ray has those that its task has no share of.
    """
    with suppress(OSError):
        limits = limits_file.read_limits(folder / "etc" / "limits") or at_launch
        return tuple((uuid, quota) for uuid, quota in limits if quota.memory_bytes != 0)
    return tuple(at_launch)
