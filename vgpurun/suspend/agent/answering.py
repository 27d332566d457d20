"""Does what users ask the guard for (requests.py), each in a thread of its own, and tells them how it went."""

from collections.abc import Callable

from vgpurun.limits.update import patience
from vgpurun.suspend import requests
from vgpurun.suspend.agent.roster import Roster
from vgpurun.suspend.agent.transitions import Transitions
from vgpurun.suspend.agent.troubles import trouble_of
from vgpurun.suspend.requests import Request
from vgpurun.suspend.targets import Target
from vgpurun.util.background import Background


class Answering:
    """The requests under way. `say` hears of each that is answered."""

    def __init__(self, roster: Roster, transitions: Transitions, say: Callable[[str], None]) -> None:
        self._roster = roster
        self._transitions = transitions
        self._say = say
        self._answers: dict[str, tuple[Request, Background[str]]] = {}

    def is_busy_with(self, target: Target) -> bool:
        """Whether a request about a target is under way."""
        return target.id in self._answers

    def see_to(self, target: Target, request: Request | None) -> None:
        """Begin to do what is asked for, or tell how that went: its programs may take long. Raises OSError."""
        if target.id not in self._answers:
            assert request is not None
            self._answers[target.id] = request, self._carry_out(target, request)
        asked, doing = self._answers[target.id]
        if not doing.has_ended(0):
            return
        del self._answers[target.id]
        trouble = doing.result()
        requests.answer(target.limits_folder, asked, trouble)
        self._say(f"{asked.verb} {target.name}: its user asks for it{trouble and f'; {trouble}'}")

    def wait(self) -> None:
        """Wait for the end of all that is under way."""
        for _, doing in self._answers.values():
            doing.result()

    def _carry_out(self, target: Target, request: Request) -> Background[str]:
        engine = self._roster.engine

        def act() -> None:
            with patience():
                self._transitions.carry_out(target, request, engine)

        return Background(lambda: trouble_of(act))
