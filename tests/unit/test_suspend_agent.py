"""The agent of the guard goes on, whatever it meets."""

from __future__ import annotations

import pytest

from vgpurun.errors import EngineError
from vgpurun.suspend import agent
from vgpurun.suspend.agent import Agent


@pytest.mark.parametrize("name", ["end_overdue", "slices_and_processes", "queue"])
@pytest.mark.parametrize("error", [EngineError("the engine is gone"), OverflowError("int too large")])
def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """It says so once, and does the next ones."""
    done: list[str] = []

    def fails(*_: object) -> list[object]:
        done.append(name)
        raise error

    def works(name: str) -> object:
        def work(*_: object) -> list[object]:
            done.append(name)
            return []

        return work

    monkeypatch.setattr(agent, "_connect", lambda: None)
    monkeypatch.setattr(agent, "_LOOK_AT_ALL_EVERY_S", 0.0)
    for each in ("end_overdue", "slices_and_processes", "queue"):
        monkeypatch.setattr(agent, each, fails if each == name else works(each))
    said: list[str] = []
    looking = Agent([], "libcuda", said.append)
    looking.look()
    looking.look()
    assert {"end_overdue", "slices_and_processes", "queue"} <= set(done)
    assert len(said) == 1 and str(error) in said[0]
