"""Removes a slice, unless somebody uses it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun import abi
from vgpurun.errors import SliceError, StateError
from vgpurun.inventory.reservations import is_abandoned, local_processes
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.slices.members import members
from vgpurun.slices.store import Slice
from vgpurun.storage.shared_file import has_live_processes
from vgpurun.together import server

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer  # slow to import

_SHORT_ID = 12
_NOTHING = Quota(memory_bytes=0, sm_percent=1)


def users_of(found: Slice, engine: "Engine | None") -> list[str]:
    """Return what uses a slice, by names for people: containers, stopped ones too, processes. Raises EngineError."""
    mine = {each.id: each.name for each in _containers_of(found, engine)} if engine else {}
    names = list(mine.values())
    names += [each.name for each in local_processes() if found.folder in (Path(each.slice_folder), *each.parents)]
    for member in members([found])[found.id]:
        if member.container not in mine:
            names.append(f"container {member.container[:_SHORT_ID]}" if member.container else f"process {member.pid}")
    if not names and has_live_processes(found.usage):
        names.append("processes that cannot be seen from here")
    return names


def _containers_of(found: Slice, engine: "Engine") -> "list[VgpurunContainer]":
    joined = [
        each for each in engine.containers() if each.slice_name and Path(each.record.slice_folder) == found.folder
    ]
    return [each for each in joined if not is_abandoned(each, engine)]


def remove(found: Slice, engine: "Engine | None", force: bool) -> list[str]:
    """Remove a slice; return what went on in it and was cut off: it keeps what it holds and is granted nothing more.

    Raises SliceError for one that is in use, unless by force, EngineError and StateError.
    """
    with store.alone(found) as found, store.being_removed(found):
        users = users_of(found, engine)
        if users and not force:
            raise SliceError(
                f"slice {found.name} is in use by {_listed(users)}; remove that first, or take everything from it with "
                "--force"
            )
        if users:
            _refuse_suspended(found)
            _grant_nothing(found)
        store.remove(found)
    if found.together:
        server.sweep()
    return users


def _refuse_suspended(found: Slice) -> None:
    """Raise SliceError: programs whose memory lies on the host come back by their slice alone."""
    if any(quota.suspended != abi.NOT_SUSPENDED for _, quota in found.quotas):
        raise SliceError(
            f"slice {found.name} is suspended or waits for its turn, and what is in there would be lost; try again in "
            f"its turn, bring it back with vgpurun resume --slice {found.name}, or end it"
        )


def _grant_nothing(found: Slice) -> None:
    path = found.folder / "etc" / "limits"
    try:
        nothing = replace(_NOTHING, together=found.together)
        limits_file.write_limits(path, [(uuid, nothing) for uuid, _ in found.quotas])
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}; only root may change it") from None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
