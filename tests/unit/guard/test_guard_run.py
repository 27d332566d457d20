"""How the guard's parts begin and end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import make_gpus
from guard_world import SETTINGS

from vgpurun.errors import GpuError, GuardError
from vgpurun.guard import run
from vgpurun.guard.daemon import Guard
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
    guard = Running(SETTINGS, lambda _: None)
    with pytest.raises(GuardError, match="thread 'turns' ended with RuntimeError: can't start new thread"):
        guard.run(Never())
    assert not guarded.is_running()


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
    guard = Running(SETTINGS, said.append)
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
        Running(SETTINGS, done.append).run(AtOnce())
    assert done[-1] == "stop" and not guarded.is_running()


@pytest.mark.usefixtures("root")
def test_what_is_held_is_let_go_before_anything_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager kills a guard that does not end in time: what it held would stand for good."""
    done: list[str] = []
    monkeypatch.setattr(run, "Agent", lambda *_: Suspensions(done))
    monkeypatch.setattr(Guard, "close", lambda _: done.append("let go"))
    monkeypatch.setattr(Running, "look", lambda _: None)
    Running(SETTINGS, done.append).run(AtOnce())
    assert [each for each in done if each in ("start", "let go", "stop")] == ["start", "let go", "stop"]
