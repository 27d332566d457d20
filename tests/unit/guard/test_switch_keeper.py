"""The keeper, whatever becomes of a process, and the guard, whatever becomes of its keeper; channels are made up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from vgpurun.errors import ChannelError
from vgpurun.guard import switch_keeper
from vgpurun.guard.switch_keeper import KEEP, OFF, ON, SLICE, Keeper
from vgpurun.guard.switches import Switches
from vgpurun.util.process_identity import ProcessIdentity, identify


class Channels:
    """The channels of a process. `troubles` are what finding them raises, by PID, `switched` what was done."""

    troubles: ClassVar[dict[int, Exception]] = {}
    switched: ClassVar[list[tuple[int, bool]]] = []
    found: ClassVar[list[int]] = []

    def __init__(self, process: ProcessIdentity, _: object) -> None:
        self.pid = process.pid

    def find(self, _: bool) -> int:
        self.found.append(self.pid)
        if self.pid in self.troubles:
            raise self.troubles[self.pid]
        return 1

    def are_its_own(self) -> bool:
        return True

    def set_slice(self, _: int) -> int:
        return 1

    def switch(self, off: bool) -> int:
        if self.pid in self.troubles:
            raise self.troubles[self.pid]
        self.switched.append((self.pid, off))
        return 1


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    for name in ("troubles", "switched", "found"):
        monkeypatch.setattr(Channels, name, type(getattr(Channels, name))())
    monkeypatch.setattr(switch_keeper, "ProcessChannels", Channels)
    made: Any = None
    return Keeper(made)


def line(verb: str, pid: int) -> str:
    process = identify(pid)
    assert process
    return f"{verb} {process.pid} {process.started_ticks}"


def test_a_mistake_about_one_process_keeps_no_other_off(keeper: Keeper) -> None:
    one, other = os.getpid(), os.getppid()
    assert keeper.answer(line(OFF, one)) == keeper.answer(line(OFF, other)) == "1"
    Channels.troubles[one] = ValueError("unforeseen")
    assert keeper.answer(line(ON, one)) == "! ValueError('unforeseen')"
    keeper.put_back()
    assert (other, False) in Channels.switched


def test_one_that_a_killed_keeper_had_off_is_off_once(keeper: Keeper) -> None:
    """The driver counts how often it was taken off."""
    pid = os.getpid()
    for verb in (KEEP, OFF, ON):
        keeper.answer(line(verb, pid))
    assert [off for _, off in Channels.switched] == [False, True, False]


def test_one_that_is_off_is_taken_off_again_only_with_what_may_be_new(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard asks at each look. To take it off once more it has to be put on for a moment."""
    pid, now_s = os.getpid(), 100.0
    monkeypatch.setattr(switch_keeper.time, "monotonic", lambda: now_s)
    for _ in range(3):
        assert keeper.answer(line(OFF, pid)) == "1"
    assert (Channels.found, Channels.switched) == ([pid], [(pid, True)])
    now_s += 1  # what it has made since has to be off, too
    keeper.answer(line(OFF, pid))
    assert (Channels.found, Channels.switched) == ([pid] * 2, [(pid, True)] * 2)
    keeper.answer(f"{line(SLICE, pid)} 1000")  # finds what is new, and takes none of it off
    keeper.answer(line(OFF, pid))
    assert Channels.switched == [(pid, True)] * 3
    for verb in (ON, OFF):
        keeper.answer(line(verb, pid))
    assert Channels.switched == [*[(pid, True)] * 3, (pid, False), (pid, True)]


def test_one_that_may_be_off_is_looked_for_less_and_less_often(keeper: Keeper) -> None:
    """A process may be hidden for good; the last look is at the end."""
    pid = os.getpid()
    keeper.answer(line(KEEP, pid))
    Channels.troubles[pid] = ChannelError("hidden")
    assert [keeper.answer(line(ON, pid)) for _ in range(3)] == ["! hidden"] * 3
    assert Channels.found == [pid]
    del Channels.troubles[pid]
    keeper.put_back()
    assert Channels.switched == [(pid, False)]


class Silent(Switches):
    """Switches whose keeper does not answer, or does later. `asked`: about how many processes at a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[int] = []
        self.answers = False

    def _ask(self, lines: Sequence[str]) -> list[str]:
        self.asked.append(len(lines))
        if self.answers:
            return ["1"] * len(lines)
        raise ChannelError(f"no answer to {lines[0].split()[0]}")


def test_a_keeper_that_does_not_answer_is_not_asked_for_each_process() -> None:
    """An answer takes seconds then, in which the guard does nothing else."""
    troubles: list[str] = []
    silent = Silent({}, lambda: None, lambda _, trouble: troubles.append(trouble))
    assert not silent.take_off(ProcessIdentity(pid, 1, "boot") for pid in (1, 2, 3))
    assert silent.asked == [3, 3], "a second keeper is tried"
    assert list(filter(None, troubles)) == ["no answer to off"] and len(silent.off) == 3
    silent.put_back(silent.off)
    assert silent.asked == [3] * 4 and len(silent.off) == 3
    silent.answers = True
    silent.put_back(())
    assert not silent.off, "what could not be put back is put back later"


def test_lines_that_come_at_once_are_answered_at_once(keeper: Keeper, capfd: pytest.CaptureFixture[str]) -> None:
    switch_keeper._answer(keeper, [line(OFF, os.getpid()), line(OFF, os.getppid())])
    assert capfd.readouterr().out == "1\n1\n"
    assert Channels.switched == [(os.getpid(), True), (os.getppid(), True)]
