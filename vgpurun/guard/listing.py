"""Keeps the engine's list of containers. It changes little, and what is new shows as an id that is not known."""

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpurun.errors import ContainerError, EngineError
from vgpurun.guard.snapshot import Program
from vgpurun.util.background import ENGINE_TAKES_S, Background

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer
    from vgpurun.engine.containers import ContainerEngine

_ENGINE_PATIENCE_S = 5
_EVERY_S, _AT_MOST_EVERY_S = 60.0, 1.0

ANY = ""  # in place of the id of a container that is not known


class Listing:
    """The containers that are there, the first process of each, and the ids that the engine has to be asked about."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self.containers: dict[str, VgpurunContainer] = {}
        self.first_pids: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.has_answered = False  # ever: without a list nobody is known to be outside
        self._note = note
        self._engine: ContainerEngine | None = None
        self._asking: Background[tuple[dict[str, VgpurunContainer], dict[str, int]]] | None = None
        self._asked_of: frozenset[Program] = frozenset()  # those that were there when the engine was asked
        self._asked_s = self._asked_again_s = float("-inf")

    def update(
        self, now_s: float, programs: Iterable[Program], in_use: Set[str], is_hurried: bool
    ) -> frozenset[Program] | None:
        """Ask the engine where it is time, more often where `is_hurried`. None where there is no new answer.

        Else those of the programs that were there when it was asked. What is in use stays known, as long as it is.
        """
        if self._asking is None and self._is_due(now_s, is_hurried):
            known, unknown = frozenset(self.first_pids.keys() - self.unknown), frozenset(self.unknown - {ANY})
            self._asked_of = frozenset(programs)
            self._asking = Background(lambda: self._ask(known, unknown))
        if self._asking is None or not self._asking.has_ended(ENGINE_TAKES_S):
            return None
        asking, self._asking = self._asking, None
        try:
            listed, first_pids = asking.result()
        except EngineError as error:
            self._engine = None
            self._note("engine", f"new containers are not guarded: {error}")
            return None
        self._note("engine", "")
        self.take(listed, first_pids, in_use)
        return self._asked_of

    def take(
        self,
        listed: "Mapping[str, VgpurunContainer]",
        first_pids: Mapping[str, int],
        in_use: Set[str] = frozenset(),
    ) -> None:
        """Take over what the engine has answered: its containers, and the first process of those that were asked about.

        An id is never given twice, so what is not listed any more may stay known until its processes are gone.
        """
        self.containers = {id_: each for id_, each in self.containers.items() if id_ in in_use} | dict(listed)
        self.first_pids = {
            id_: pid for id_, pid in (self.first_pids | dict(first_pids)).items() if id_ in self.containers
        }
        self.has_answered = True
        self.unknown = set()

    def _is_due(self, now_s: float, is_hurried: bool) -> bool:
        every_s = _EVERY_S if self.has_answered and not is_hurried else _AT_MOST_EVERY_S
        if now_s - self._asked_s >= every_s:
            self._asked_s = self._asked_again_s = now_s
            return True
        if self.unknown and now_s - self._asked_again_s >= _AT_MOST_EVERY_S:
            self._asked_again_s = now_s
            return True
        return False

    def _ask(
        self, known: frozenset[str], unknown: frozenset[str]
    ) -> tuple[dict[str, "VgpurunContainer"], dict[str, int]]:
        """Ask the engine, in a thread of its own: it may not answer for a long time. Raises EngineError.

        It lists a container only some time after its first process runs, but describes it from then on.
        """
        from vgpurun.engine.containers import ContainerEngine, from_description

        engine = self._engine = self._engine or ContainerEngine.connect(_ENGINE_PATIENCE_S)
        listed = {each.id: each for each in engine.containers(everything=False)}
        first_pids = {}

        def describe(id_: str) -> None:
            with suppress(ContainerError):
                found = engine.describe(id_)
                if first_pid := int(found["State"]["Pid"]):
                    first_pids[id_] = first_pid
                    listed.setdefault(id_, from_description(found))

        for id_ in listed.keys() - known:
            describe(id_)
        with suppress(EngineError):  # the engine describes none while it starts it, which may take long
            for id_ in unknown - listed.keys():
                describe(id_)
        return listed, first_pids
