"""The end of a container (`--for`) that a `vgpurun run` waits for."""

import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from vgpurun.admission.overdue import WARNED_BEFORE_S, note_end
from vgpurun.console.messages import warn
from vgpurun.util.threads import Helper
from vgpurun.util.times import show_age

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_HANDED_OVER_S = 0.1  # within this a request has reached the engine


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
        if left_s > WARNED_BEFORE_S and self._is_over.wait(left_s - WARNED_BEFORE_S):
            return
        warn(f"the time of --for ends in {show_age(self._ends_s - time.time())}: the container is stopped then")
        if not self._is_over.wait(max(0.0, self._ends_s - time.time())):
            note_end(self._folder)  # first: with --rm the folder is gone with the container
            self._engine.stop(self._container, _HANDED_OVER_S, grace_s=None)
