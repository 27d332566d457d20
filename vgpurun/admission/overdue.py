"""Containers and slices with an end (`--for`): what ends them is whatever of vgpurun runs by then.

That is the `vgpurun run` that waits for the container, the guard, every launch of the same user or of root, and
`vgpurun prune`. Without any of them a container runs on. A slice that is over reserves nothing, and root removes it.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.admission.removing import remove
from vgpurun.errors import VgpurunError
from vgpurun.slices import store
from vgpurun.storage import state

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine


def end_overdue(engine: "Engine | None") -> list[str]:
    """Stop the containers, and remove the slices, whose time is over; return what they are called. Raises nothing."""
    now_s, ended = time.time(), []
    for folder in state.folders(state.visible_roots()):
        owner = state.read_owner(folder) or {}
        container, ends_s = owner.get("container"), state.ends_s(owner)
        if engine and container and ends_s is not None and ends_s <= now_s and not owner.get("has_ended"):
            with suppress(VgpurunError):  # another has removed it, or the engine ends
                engine.stop(str(container), grace_s=None)
                note_end(folder)
                ended.append(f"container {folder.name.rpartition('-')[0] or folder.name}")
    for each in store.slices():
        if each.is_over(now_s):
            with suppress(VgpurunError):  # only root may
                remove(each, engine, force=True)
                ended.append(f"slice {each.name}")
    return ended


def note_end(folder: Path) -> None:
    """Write down that a container was ended: started again, it has no end."""
    with suppress(OSError):
        if owner := state.read_owner(folder):
            state.write_owner(folder, {**owner, "has_ended": True})
