"""Single keys from the terminal, for a program that fills the screen."""

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vgpurun.console import terminal

# The bytes that terminals send, by the names that a program goes by.
_NAMES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\x1b[5~": "page up",
    b"\x1b[6~": "page down", b"\x1b": "escape", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace",
    b"\x08": "backspace", b"\x04": "end",
}  # fmt: skip
_SUSPEND = 6  # the index of the special characters among a terminal's settings


@contextmanager
def keys(file: int = 0) -> Iterator[None]:
    """Give every key on at once and unseen; Ctrl-C stays a signal. The terminal is restored, however the end comes."""
    if not terminal.is_terminal(file):
        yield
        return
    saved = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSADRAIN)
    settings = termios.tcgetattr(file)
    settings[_SUSPEND][termios.VSUSP] = b"\x00"  # Ctrl-Z would leave the shell with a full screen
    termios.tcsetattr(file, termios.TCSADRAIN, settings)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):  # the terminal may be gone
            termios.tcsetattr(file, termios.TCSAFLUSH, saved)


def next_key(timeout_s: float, file: int = 0) -> str | None:
    """Wait for a key and return its name or its letter, "end" at the end of input; None when none came in that time."""
    if not terminal.is_terminal(file):
        select.select([], [], [], timeout_s)
        return None
    if not _has_more(file, timeout_s):
        return None
    typed = more = os.read(file, 1)
    while more and not _is_whole(typed) and _has_more(file, 0):
        more = os.read(file, 1)
        typed += more
    return _NAMES.get(typed, typed[:1].decode("latin-1")) if typed else "end"  # the input has ended


def _has_more(file: int, timeout_s: float) -> bool:
    return bool(select.select([file], [], [], timeout_s)[0])


def _is_whole(typed: bytes) -> bool:
    """Whether this is all of a key: many are an escape and what follows at once, up to a letter or a tilde."""
    if typed.startswith(b"\x1b["):
        return len(typed) > 2 and 0x40 <= typed[-1] <= 0x7E
    return typed not in (b"\x1b", b"\x1bO")
