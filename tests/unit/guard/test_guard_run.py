"""The order in which the guard's parts end."""

from __future__ import annotations

from pathlib import Path

import pytest
from guard_world import SETTINGS

from vgpurun.guard import run
from vgpurun.guard.daemon import Guard
from vgpurun.guard.run import Running


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


def test_what_is_held_is_let_go_before_anything_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager kills a guard that does not end in time: what it held would stand for good."""
    done: list[str] = []
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(run, "Agent", lambda *_: Suspensions(done))
    monkeypatch.setattr(Guard, "close", lambda _: done.append("let go"))
    monkeypatch.setattr(Running, "look", lambda _: None)
    Running(SETTINGS, done.append).run(AtOnce())
    assert [each for each in done if each in ("start", "let go", "stop")] == ["start", "let go", "stop"]
