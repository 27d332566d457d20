"""The end of a container (`--for`) that a `vgpurun run` waits for."""

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from vgpurun.admission.overdue import WARNED_BEFORE_S, note_end
from vgpurun.console.messages import warn
from vgpurun.util.threads import Helper
from vgpurun.util.times import boot_s, show_left

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_LOOKS_EVERY_S = 30.0  # a wait does not count the time for which the host sleeps
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
        if self._is_cancelled_before(self._ends_s - WARNED_BEFORE_S):
            return
        warn(f"the time of --for ends in {show_left(self._ends_s - boot_s())}: the container is stopped then")
        if not self._is_cancelled_before(self._ends_s):
            note_end(self._folder)  # first: with --rm the folder is gone with the container
            self._engine.stop(self._container, _HANDED_OVER_S, grace_s=None)

    def _is_cancelled_before(self, moment_s: float) -> bool:
        while (left_s := moment_s - boot_s()) > 0:
            if self._is_over.wait(min(left_s, _LOOKS_EVERY_S)):
                return True
        return False
