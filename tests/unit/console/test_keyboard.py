"""Keys as terminals send them."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest

from vgpurun.console.keyboard import keys, next_key


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    near, far = pty.openpty()
    with keys(far):
        yield near, far
    os.close(near)
    os.close(far)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (b"c+", ["c", "+"]),
        (b"mmq", ["m", "m", "q"]),
        (b"\x1b[A\x1b[B\x1bOAk ", ["up", "down", "up", "k", " "]),
        (b"a\x7f\r", ["a", "backspace", "enter"]),
        (b"\x1b[6~q", ["page down", "q"]),
        (b"\x1b[1;5Aq", ["\x1b", "q"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[", ["\x1b"]),
        (b"\x04", ["end"]),
    ],
)
def test_keys_that_come_together_are_told_apart(terminal: tuple[int, int], typed: bytes, expected: list[str]) -> None:
    near, far = terminal
    os.write(near, typed)
    assert [next_key(20, far) for _ in expected] == expected
    assert next_key(0, far) is None
