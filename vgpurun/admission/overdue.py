"""Ends containers and slices that have reached their --for limit. Whichever part of vgpurun runs by then does it.

That is the `vgpurun run` that waits for the container, the guard, every launch of the same user or of root, and
`vgpurun prune`. Without any of them a container runs on. A slice that is over reserves nothing, and root removes it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.errors import VgpurunError
from vgpurun.slices import store
from vgpurun.storage import state
from vgpurun.util.times import boot_s, show_left

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer

WARNED_BEFORE_S = 600.0


@dataclass(frozen=True)
class Ending:
    """A container or a slice that ends soon, `ends_s` by the boot clock.

    `folder` has its limits, and `subject` says in words what it is.
    """

    id: str
    name: str
    subject: str
    folder: Path
    ends_s: float
    words: str


def end_overdue(engine: "Engine | None", containers: Sequence["VgpurunContainer"] = ()) -> list[str]:
    """Stop containers and remove slices that have reached their --for limit; return their names. Raises nothing.

    Containers are those of this user, and `containers`, which may be anybody's.
    """
    now_s, ended = boot_s(), []
    overdue = {each.id: Path(each.state_folder) for each in containers if _is_over(each.record.ends_s, now_s)}
    for folder in state.folders(state.visible_roots()):
        owner = state.known_owner(folder) or {}
        if "container" in owner and not owner.get("has_ended") and _is_over(state.ends_s(owner), now_s):
            overdue[str(owner["container"])] = folder
    for container, folder in overdue.items():
        with suppress(VgpurunError):  # another has removed it, or the engine ends
            if engine and _stop(engine, container, folder):
                ended.append(f"container {folder.name.rpartition('-')[0] or folder.name}")
    for each in store.slices():
        if each.is_over():
            from vgpurun.admission.removing import remove  # few launches meet one

            with suppress(VgpurunError):  # only root may
                remove(each, engine, force=True)
                ended.append(f"slice {each.name}")
    return ended


def _is_over(ends_s: float | None, now_s: float) -> bool:
    return ends_s is not None and ends_s <= now_s


def _stop(engine: "Engine", container: str, folder: Path) -> bool:
    """Stop a container at its --for limit; return whether it ran. Started again after that time, it has no end."""
    started_s = engine.started_s(container)
    is_late = started_s is not None and _is_over(state.ends_s(state.read_owner(folder) or {}), started_s)
    if started_s is not None and not is_late:
        engine.stop(container, grace_s=None)
    note_end(folder)
    return started_s is not None and not is_late


def note_end(folder: Path) -> None:
    """Write down that a container was ended: started again, it has no end. Root writes into no user's folder."""
    with suppress(OSError):
        if folder.lstat().st_uid == os.geteuid() and (owner := state.read_owner(folder)):
            state.write_owner(folder, {**owner, "has_ended": True})


def ending_soon(containers: Sequence["VgpurunContainer"]) -> Iterator[Ending]:
    """Yield the containers and slices that will be over soon, with words that warn of that. Raises nothing."""
    now_s = boot_s()
    found = [
        (each.id, each.name, f"container {each.name} of {each.user}", each.limits_folder, each.record.ends_s)
        for each in containers
    ]
    found += [(each.id, each.name, f"slice {each.name}", each.folder, each.ends_s) for each in store.slices()]
    for id_, name, subject, folder, ends_s in found:
        if ends_s is not None and 0 < ends_s - now_s <= WARNED_BEFORE_S:
            words = f"the time of --for ends in {show_left(ends_s - now_s)}"
            yield Ending(id_, name, subject, folder, ends_s, words)
