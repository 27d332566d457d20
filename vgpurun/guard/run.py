"""Runs the guard: its parts put together, and the loop over time."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vgpurun.admission.overdue import Ending
from vgpurun.console import signals
from vgpurun.console.messages import say
from vgpurun.errors import GpuError, GuardError
from vgpurun.guard.brakes import Freezer, Switch
from vgpurun.guard.compute import ComputeDuty
from vgpurun.guard.daemon import Duty, Guard
from vgpurun.guard.gpu_work import GpuWorkDuty
from vgpurun.guard.hands import HANDS
from vgpurun.guard.memory import MemoryDuty
from vgpurun.guard.newcomers import Newcomers
from vgpurun.guard.notice_file import tell
from vgpurun.guard.outside import Allowed, OutsideDuty
from vgpurun.guard.outside_slices import OutsideSlicesDuty, Slices
from vgpurun.guard.reader import GuardReader, clock
from vgpurun.guard.state import State
from vgpurun.guard.switches import SWITCHES, Switches
from vgpurun.guard.upkeep import follow, let_held_run
from vgpurun.host.gpus import Gpu, list_gpus
from vgpurun.inventory.guarded import HOLD, WARN, Action, Done
from vgpurun.suspend.agent.agent import Agent
from vgpurun.util.background import Background
from vgpurun.util.choices import GUARD_SWITCHES
from vgpurun.util.printable import printable
from vgpurun.util.threads import ended_by_errors

REFRESH_INTERVAL_S = 0.5
NEWCOMERS_INTERVAL_S = 0.1
_NEWCOMERS_EARLY_S = 0.01  # at most: where something else is done then, one wake-up does for both
_LEAST_WAIT_S = 0.001
_TELLING_TAKES_S = 0.5  # at most: users name folders on servers that do not answer


def say_to_journal(message: str) -> None:
    """Say a line on stderr; where that is systemd's journal, with the line's level."""
    if os.environ.get("JOURNAL_STREAM"):
        message_level = "<4>" if message.startswith("warning: ") else "<5>"
        os.write(2, f"{message_level}{printable(message)}\n".encode())
    else:
        say(message)


def duties_of(settings: dict[str, Any], slices: Slices, state: State, switches: Switches) -> Sequence[Duty]:
    """Return all that the guard sees to, as it is configured."""
    return (
        MemoryDuty(
            state.memory_of(MemoryDuty.name), state, settings["memory"], settings["grace"], settings["counted_grace"]
        ),
        *_compute_duties(settings["compute"], state, switches),
        OutsideDuty(
            state.memory_of(OutsideDuty.name), state, settings["outside"], settings["outside_grace"],
            Allowed(settings["users"], settings["programs"]),
        ),
        OutsideSlicesDuty(state.memory_of(OutsideSlicesDuty.name), slices, switches),
    )  # fmt: skip


def _compute_duties(policy: str, state: State, switches: Switches) -> Iterator[Duty]:
    memory = state.memory_of(ComputeDuty.name)
    if policy in GUARD_SWITCHES:
        work = GpuWorkDuty(state.memory_of(GpuWorkDuty.name), state, switches)
        yield work
        holds_all = policy == "all"
        yield ComputeDuty(memory, state, HOLD, Switch(switches, work, holds_all), holds_all)
    else:
        yield ComputeDuty(memory, state, policy, Freezer())


class Running:
    """A guard that runs: it looks at its times until it is told to end."""

    def __init__(
        self, settings: dict[str, Any], slices: Slices, say: Callable[[str], None] = say_to_journal,
        libcuda: str = "libcuda.so.1",
    ) -> None:  # fmt: skip
        """Raises GuardError, also where another guard runs. `libcuda` is the driver's library."""
        if os.geteuid() != 0:
            raise GuardError("the guard acts on containers of all users and needs root: sudo vgpurun guard")
        self._say = say
        self._state = State(say)
        self._switches = Switches(self._state.memory_of(SWITCHES), self._state.write, self._note, libcuda)
        duties = duties_of(settings, slices, self._state, self._switches)
        hands = {verb: hand for each in duties for verb, hand in each.hands.items()}
        self._guard = Guard(self._state, duties, {**HANDS, **hands}, say, self._tell)
        self._reader = GuardReader(self._state.stopped, self._guard.note, clock)
        self._newcomers = Newcomers(clock)
        self._gpus: list[Gpu] = []  # the agent's too; filled once
        self._suspensions = Agent(self._gpus, libcuda, say, self._warn_of_end)

    def _note(self, source: str, trouble: str) -> None:
        self._guard.note(source, trouble)

    def run(self, ending: signals.Ending) -> None:
        """Look until the end. Raises GuardError where one of its threads has died.

        Raises OSError where its state cannot be written at all.
        """
        with ended_by_errors() as ended, ExitStack() as closing:  # each is closed, whatever another raises
            closing.callback(self._state.close)
            closing.callback(self._reader.close)
            closing.callback(self._newcomers.close)
            self._guard.resume()
            let_held_run(self._state)
            self._switches.put_back(self._switches.off)  # by a guard before this one
            self._switches.set_slices({})
            self._suspensions.start()
            closing.callback(self._suspensions.stop)
            closing.callback(self._switches.close)
            closing.callback(self._guard.close)  # first: what is held must not stand while a transition ends
            self._run(ending, ended)

    def _run(self, ending: signals.Ending, ended: Sequence[str]) -> None:
        refresh_at_s = news_at_s = clock()
        while not ended:
            now_s, is_news = clock(), False
            if now_s >= news_at_s - _NEWCOMERS_EARLY_S:  # not at each tick: those of held containers are many
                news_at_s = max(news_at_s, now_s) + NEWCOMERS_INTERVAL_S
                is_news = self._newcomers.are_expected(self._reader.pids)
            if now_s >= refresh_at_s or is_news:
                self.look()
                # Not in step with anything: a program that is on the GPU between two looks would always be.
                refresh_at_s = now_s + REFRESH_INTERVAL_S * random.uniform(0.6, 1.4)
            self._guard.tick(clock() + _LEAST_WAIT_S)  # also what would be due before the next wake-up
            refresh_at_s, next_s = self._guard.next_s(refresh_at_s)
            if ending.wait(max(min(next_s, news_at_s) - clock(), _LEAST_WAIT_S)):
                return
        raise GuardError(f"{ended[0]}; without it the guard would do but a part of its work, and ends")

    def _find_gpus(self) -> None:
        """Let the agent have the GPUs as soon as the driver answers: at a boot it may be there later than the guard."""
        try:
            self._gpus.extend(list_gpus())
            self._guard.note("GPUs", "")
        except GpuError as error:
            self._guard.note("GPUs", f"nothing is suspended or brought back: {error}")

    def look(self) -> None:
        """Look once, and do what is to be done."""
        if not self._gpus:
            self._find_gpus()
        try:
            follow(self._state, self._say)
            snapshot = self._reader.look()
            if snapshot is None:
                return
            self._guard.look(snapshot)
        except OSError as error:
            self._guard.note("state", f"the guard's state cannot be written: {error.strerror}")

    def _warn_of_end(self, ending: Ending) -> None:
        """Warn as of the guard's own actions: in the journal, and in the container."""
        action = Action(WARN, "end", ending.words, ending.name, "", ending.id, folder=str(ending.folder))
        self._say(f"{WARN} {ending.subject}: {ending.words}")
        self._tell(Done(0, time.time(), action))

    def _tell(self, done: Done) -> None:
        if not done.action.folder:
            return
        telling = Background(lambda: tell(Path(done.action.folder), done))
        try:
            if telling.has_ended(_TELLING_TAKES_S):
                telling.result()
            else:
                self._say(f"warning: container {done.action.name} cannot be notified: its folder does not answer")
        except OSError as error:
            self._say(f"warning: container {done.action.name} cannot be notified: {error.strerror}")
