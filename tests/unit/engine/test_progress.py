"""How a pull or a build is shown, in a terminal and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest
from fakes import Terminal

from vgpurun.engine import progress
from vgpurun.errors import ImageError

EVENTS: list[dict[str, Any]] = [
    {"stream": "Step 1/2 : FROM [base]\n"},
    {"stream": "\n"},
    {"status": "Downloading", "id": "abc", "progressDetail": {"current": 1, "total": 4}},
    {"status": "Pull complete", "id": "abc", "progressDetail": {}},
    {"stream": "x.c:1: error: no such thing\n"},
]


def failing() -> Iterator[dict[str, Any]]:
    yield from EVENTS
    raise ImageError("the builder image cannot be made")


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress.show("Pulling x", EVENTS)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "Pulling x",
        "Step 1/2 : FROM [base]",
        "abc: Pull complete",
        "x.c:1: error: no such thing",
    ]


def test_one_live_line_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as terminal:
        progress.show("Pulling x", EVENTS)
    assert "x.c:1: error" not in terminal.getvalue().splitlines()[-1]


def test_a_failure_shows_what_led_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as terminal, pytest.raises(ImageError):
        progress.show("Building", failing())
    lines = terminal.getvalue().splitlines()
    assert lines[-1] == "x.c:1: error: no such thing"
    assert any("abc: Downloading 25 %" in line for line in lines)
