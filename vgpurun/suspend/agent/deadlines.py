"""Ends what is over by `--for`, and warns of what will be soon."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vgpurun.admission.overdue import Ending, end_overdue, ending_soon
from vgpurun.util.background import ENGINE_TAKES_S, Background

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer


class Deadlines:
    """The deadlines of the host. `say` hears of each end, `warn_of_end` once of each that comes soon."""

    def __init__(self, say: Callable[[str], None], warn_of_end: Callable[[Ending], None]) -> None:
        self._say = say
        self._warn_of_end = warn_of_end
        self._warned_of: set[str] = set()
        self._ending: Background[None] | None = None

    def end(self, engine: "Engine | None", containers: "Sequence[VgpurunContainer]") -> None:
        """End what is over, in a thread of its own: a container may take long to end. Raises what went wrong there."""
        if self._ending is None:
            self._ending = Background(lambda: self._end(engine, containers))
        if self._ending.has_ended(ENGINE_TAKES_S):
            ended, self._ending = self._ending, None
            ended.result()

    def _end(self, engine: "Engine | None", containers: "Sequence[VgpurunContainer]") -> None:
        for ended in end_overdue(engine, containers):
            self._say(f"stop {ended}: it reached its --for limit")

    def warn(self, containers: "Sequence[VgpurunContainer]") -> None:
        """Warn of what will be over soon."""
        soon = {each.id: each for each in ending_soon(containers)}
        for key in soon.keys() - self._warned_of:
            self._warn_of_end(soon[key])
        self._warned_of = set(soon)
