"""Looks after what is suspended, idles, or is over (`--for`): a thread of the host's daemon, `vgpurun guard`.

It finishes what was interrupted, brings back what asks for its GPUs when there is room, and does what --idle says.
What takes turns is left to swapping.py, but for what --idle says of it.
Where a program asks and there is no room, or a launch waits, it suspends idle programs that allow it.
"""

import threading
import time
from collections.abc import Callable, Sequence

from vgpurun.admission.overdue import Ending
from vgpurun.host.gpus import Gpu
from vgpurun.limits.update import patience
from vgpurun.suspend.agent.answering import Answering
from vgpurun.suspend.agent.care import Care
from vgpurun.suspend.agent.deadlines import Deadlines
from vgpurun.suspend.agent.facts import Fact, Facts
from vgpurun.suspend.agent.giving_way import GivingWay
from vgpurun.suspend.agent.idling import Idling
from vgpurun.suspend.agent.roster import Roster
from vgpurun.suspend.agent.swapping import INTERVAL_S, Swapper
from vgpurun.suspend.agent.transitions import Transitions
from vgpurun.suspend.agent.troubles import Troubles
from vgpurun.suspend.agent.uses import Uses

_FULL_INTERVAL_S = 1.0  # between refreshes of all others


class Agent:
    """The agent of the host. `say` hears of each thing that is done, and once of each trouble.

    `warn_of_end` tells what ends soon of that. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        libcuda: str,
        say: Callable[[str], None],
        warn_of_end: Callable[[Ending], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._troubles = Troubles(say, clock)
        self._deadlines = Deadlines(say, warn_of_end)
        self._roster = Roster()
        self._facts = Facts()
        self._uses = Uses(gpus, self._facts, clock)
        transitions = Transitions(gpus, libcuda, say, self._troubles)
        self._giving_way = GivingWay(self._roster, self._facts, self._uses, transitions, self._troubles)
        self._idling = Idling(gpus, self._uses, transitions, say)
        self._answering = Answering(self._roster, transitions, say)
        self._care = Care(self._facts, self._answering, transitions, self._giving_way, self._idling)
        self._swapper = Swapper(gpus, libcuda, self._troubles, self._uses)
        self._found: Sequence[Fact] = ()
        self._refreshed_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="suspensions", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread."""
        self._thread.start()
        self._swapper.start()

    def stop(self) -> None:
        """Look no more. A transition under way ends first."""
        self._stopping.set()
        self._thread.join()
        self._answering.wait()
        self._swapper.stop()
        self._facts.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._wait_s()):
            self.look()

    def _wait_s(self) -> float:
        all_s = self._refreshed_s + _FULL_INTERVAL_S - self._clock()
        return INTERVAL_S if self._care.watched else max(all_s, INTERVAL_S)

    def look(self) -> None:
        """Do what is to be done now. Raises nothing."""
        now_s = self._clock()
        with patience():
            looked_at = self._care.watched
            if now_s - self._refreshed_s >= _FULL_INTERVAL_S:
                self._refreshed_s = now_s
                for step in (self._list, self._read_facts, self._note_use, self._giving_way.let_in):
                    self._troubles.step(step, now_s)
                watched = {each.id for each in looked_at}
                looked_at = [
                    each.target
                    for each in self._found
                    if each.is_in_question or each.target.id in watched or self._troubles.has(each.target)
                ]
            for target in looked_at:
                if self._troubles.may_try(target, now_s) and not self._stopping.is_set():
                    self._troubles.attempt(target, lambda target: self._care.see_to(target, now_s))

    def _list(self, now_s: float) -> None:
        if not self._roster.ask_engine(now_s):
            return
        self._troubles.step(self._deadlines.end, self._roster.engine, self._roster.containers)
        self._troubles.step(self._deadlines.warn, self._roster.containers)
        self._roster.list_targets()
        for each in (self._care, self._idling, self._troubles):
            each.keep(self._roster.targets)
        self._uses.keep(self._roster.targets, now_s)

    def _read_facts(self, _: float) -> None:
        self._found = self._facts.of(self._roster.targets)
        self._swapper.see([each.target for each in self._found if each.marks.takes_turns])

    def _note_use(self, now_s: float) -> None:
        self._uses.note([each.target for each in self._found if each.is_noted], now_s)
