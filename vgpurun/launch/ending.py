"""Containers and slices with an end (`--for`): what ends them is whatever of vgpurun runs by then.

That is the `vgpurun run` that waits for the container, every launch of the same user or of root, and `vgpurun prune`. A
container that nobody waits for runs on until then. A slice that is over reserves nothing, and root removes it.
"""

import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from vgpurun.admission.removing import remove
from vgpurun.console.messages import warn
from vgpurun.errors import VgpurunError
from vgpurun.slices import store
from vgpurun.storage import state
from vgpurun.util.threads import Helper
from vgpurun.util.times import show_age

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_WARNED_BEFORE_S = 600.0
_HANDED_OVER_S = 0.1  # within this a request has reached the engine


def end_overdue(engine: "Engine | None") -> list[str]:
    """Stop the containers, and remove the slices, whose time is over; return what they are called. Raises nothing."""
    now_s, ended = time.time(), []
    for folder in state.folders(state.visible_roots()):
        owner = state.read_owner(folder) or {}
        container, ends_s = owner.get("container"), state.ends_s(owner)
        if engine and container and ends_s is not None and ends_s <= now_s and not owner.get("has_ended"):
            engine.stop(str(container), grace_s=None)
            _note_end(folder)
            ended.append(f"container {folder.name.rpartition('-')[0] or folder.name}")
    for each in store.slices():
        if each.is_over(now_s):
            with suppress(VgpurunError):  # only root may
                remove(each, engine, force=True)
                ended.append(f"slice {each.name}")
    return ended


def _note_end(folder: Path) -> None:
    """Write down that a container was ended: started again, it has no end."""
    with suppress(OSError):
        if owner := state.read_owner(folder):
            state.write_owner(folder, {**owner, "has_ended": True})


class Countdown:
    """Warns on standard error before a container that this process waits for ends, and stops it in time."""

    def __init__(self, engine: "Engine", container: str, folder: Path, ends_s: float) -> None:
        self._engine = engine
        self._container = container
        self._folder = folder
        self._ends_s = ends_s
        self._is_over = Event()
        Helper(self._run).start()

    def cancel(self) -> None:
        """Forget it."""
        self._is_over.set()

    def _run(self) -> None:
        left_s = self._ends_s - time.time()
        if left_s > _WARNED_BEFORE_S and self._is_over.wait(left_s - _WARNED_BEFORE_S):
            return
        warn(f"the time of --for ends in {show_age(self._ends_s - time.time())}: the container is stopped then")
        if not self._is_over.wait(max(0.0, self._ends_s - time.time())):
            _note_end(self._folder)  # first: with --rm the folder is gone with the container
            self._engine.stop(self._container, _HANDED_OVER_S, grace_s=None)
