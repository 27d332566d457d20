"""How the guard's parts begin and end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes import make_gpus
from guard_world import SETTINGS

from vgpurun.errors import GpuError, GuardError
from vgpurun.guard import run
from vgpurun.guard.daemon import Guard
from vgpurun.guard.outside_slices import Slices
from vgpurun.guard.reader import GuardReader
from vgpurun.guard.run import Running
from vgpurun.guard.switches import Switches
from vgpurun.host.gpus import Gpu
from vgpurun.inventory import guarded


class AtOnce:
    """The end, which has come."""

    def wait(self, timeout_s: float) -> bool:
        return timeout_s > 0


class Suspensions:
    """The agent, which may take long to end."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def start(self) -> None:
        self._done.append("start")

    def stop(self) -> None:
        self._done.append("stop")


class Mortal:
    """An agent whose thread dies, as one does that the kernel gives no further thread."""

    def __init__(self, *_: object) -> None:
        self._thread = threading.Thread(target=self._run, name="turns")

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        raise RuntimeError("can't start new thread")

    def stop(self) -> None:
        self._thread.join()


class Never:
    """An end that does not come: a test that waits for it has failed."""

    def wait(self, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return False


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    if os.geteuid():
        pytest.skip("only root runs a guard")
    return tmp_path


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("root")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_takes_the_guard_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Agent", Mortal)
    guard = Running(SETTINGS, Slices({}, {}), lambda _: None)
    with pytest.raises(GuardError, match="thread 'turns' ended with RuntimeError: can't start new thread"):
        guard.run(Never())
    assert not guarded.is_running()


class TwoSeconds:
    """Simulated time, which ends after that."""

    now_s = 0.0
    waits = 0

    def wait(self, timeout_s: float) -> bool:
        self.now_s += timeout_s
        self.waits += 1
        return self.now_s >= 2


class Restless:
    """Duties that are due all the time, as for containers that are held, and processes that are about to come."""

    def __init__(self, time: TwoSeconds) -> None:
        self._time = time
        self.asked = 0

    def are_expected(self, _: object) -> bool:
        self.asked += 1
        return True

    def tick(self, _: float) -> None:
        pass

    def next_s(self, at_latest_s: float) -> tuple[float, float]:
        return at_latest_s, self._time.now_s + 0.005


@pytest.mark.usefixtures("root")
def test_what_is_due_all_the_time_makes_no_more_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Agent", Mortal)
    looks: list[float] = []
    ending = TwoSeconds()
    restless: Any = Restless(ending)
    guard = Running(SETTINGS, Slices({}, {}), lambda _: None)
    monkeypatch.setattr(guard, "_guard", restless)
    monkeypatch.setattr(guard, "_newcomers", restless)
    monkeypatch.setattr(guard, "look", lambda: looks.append(ending.now_s))
    monkeypatch.setattr(run, "clock", lambda: ending.now_s)
    guard._run(ending, [])
    assert 19 <= restless.asked <= 21 and len(looks) <= 26
    assert max(later - earlier for earlier, later in pairwise(looks)) <= 0.11


class InTurn(Restless):
    """Duties that are due ten times a second, just before it is asked whether processes are about to come."""

    def are_expected(self, _: object) -> bool:
        self.asked += 1
        return False

    def next_s(self, at_latest_s: float) -> tuple[float, float]:
        return at_latest_s, (int(self._time.now_s * 10 + 0.06) + 0.95) / 10


@pytest.mark.usefixtures("root")
def test_one_wake_up_does_for_what_is_due_at_nearly_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Agent", Mortal)
    ending = TwoSeconds()
    duties: Any = InTurn(ending)
    guard = Running(SETTINGS, Slices({}, {}), lambda _: None)
    monkeypatch.setattr(guard, "_guard", duties)
    monkeypatch.setattr(guard, "_newcomers", duties)
    monkeypatch.setattr(guard, "look", lambda: None)
    monkeypatch.setattr(run, "clock", lambda: ending.now_s)
    guard._run(ending, [])
    assert 19 <= duties.asked <= 21 and ending.waits <= 30


@pytest.mark.usefixtures("root")
def test_a_driver_that_comes_after_the_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a boot the guard may be there first, and what was suspended before is brought back all the same."""
    given: list[Sequence[Gpu]] = []
    said: list[str] = []
    answers = iter([GpuError("no driver"), GpuError("no driver"), make_gpus(2)])

    def answer() -> list[Gpu]:
        found = next(answers)
        if isinstance(found, GpuError):
            raise found
        return found

    monkeypatch.setattr(run, "list_gpus", answer)
    monkeypatch.setattr(run, "Agent", lambda gpus, *_: given.append(gpus))
    monkeypatch.setattr(GuardReader, "look", lambda _: None)
    guard = Running(SETTINGS, Slices({}, {}), said.append)
    for _ in range(4):
        guard.look()
    assert given == [make_gpus(2)]
    assert said == ["warning: nothing is suspended or brought back: no driver"]


@pytest.mark.usefixtures("root")
def test_each_part_is_closed_whatever_another_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def fail(_: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(run, "Agent", lambda *_: Suspensions(done))
    monkeypatch.setattr(Switches, "close", fail)
    monkeypatch.setattr(Running, "look", lambda _: None)
    with pytest.raises(ValueError, match="unforeseen"):
        Running(SETTINGS, Slices({}, {}), done.append).run(AtOnce())
    assert done[-1] == "stop" and not guarded.is_running()


@pytest.mark.usefixtures("root")
def test_what_is_held_is_let_go_before_anything_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager kills a guard that does not end in time: what it held would stand for good."""
    done: list[str] = []
    monkeypatch.setattr(run, "Agent", lambda *_: Suspensions(done))
    monkeypatch.setattr(Guard, "close", lambda _: done.append("let go"))
    monkeypatch.setattr(Running, "look", lambda _: None)
    Running(SETTINGS, Slices({}, {}), done.append).run(AtOnce())
    assert [each for each in done if each in ("start", "let go", "stop")] == ["start", "let go", "stop"]
