"""Lists the containers, slices and local processes of the host: often after a launch, else seldom."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.errors import EngineError, NoEngineError
from vgpurun.storage import state
from vgpurun.suspend.targets import Target, of_containers, slices_and_processes

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer

_ASK_ENGINE_EVERY_S = 10.0
_NEWS_S = 5.0  # for how long after a launch the engine is asked at each refresh


class Roster:
    """The targets, the containers that run, and the engine that lists them, None while there is none."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.containers: Sequence[VgpurunContainer] = ()
        self.targets: Sequence[Target] = ()
        self._folders: list[int] = []  # when each was changed
        self._asked_s = self._changed_s = float("-inf")

    def ask_engine(self, now_s: float) -> bool:
        """Ask which containers run, where that is due; return whether it was."""
        folders = [
            _changed_ns(root / kind) for root in state.visible_roots() for kind in (state.CONTAINERS, state.SLICES)
        ]
        if folders != self._folders:  # a share about to start may wait for its first turn
            self._changed_s = now_s
        self._folders = folders
        if now_s - self._asked_s < _ASK_ENGINE_EVERY_S and now_s - self._changed_s >= _NEWS_S:
            return False
        self._asked_s = now_s
        try:
            self.engine = self.engine or _connect()
            self.containers = self.engine.containers(everything=False) if self.engine else ()
        except EngineError:
            self.engine = None
        return True

    def list_targets(self) -> None:
        """List the targets among those containers, and all that needs no engine."""
        self.targets = [*of_containers(self.containers), *slices_and_processes()]


def _connect() -> "Engine | None":
    from vgpurun.engine.client import Engine

    try:
        return Engine.connect()
    except NoEngineError:
        return None


def _changed_ns(folder: Path) -> int:
    with suppress(OSError):
        return folder.stat().st_mtime_ns
    return 0
