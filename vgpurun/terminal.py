"""This process's terminal: raw while a container's terminal is shown in it, and as it was before afterwards."""

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def is_terminal(file: int) -> bool:
    """Ask whether a file descriptor is a terminal; False for a closed one."""
    try:
        return os.isatty(file)
    except OSError:
        return False


def size() -> tuple[int, int] | None:
    """Return columns and rows of the terminal, or None without one."""
    for file in (0, 1, 2):
        try:
            columns, rows = os.get_terminal_size(file)
        except OSError:
            continue
        if columns and rows:
            return columns, rows
    return None


@contextmanager
def raw(file: int = 0) -> Iterator[None]:
    """Pass every key on as it is typed; restore the terminal at the end, however it comes."""
    saved = termios.tcgetattr(file)
    tty.setraw(file, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):  # the terminal may be gone
            sys.stdout.flush()
            termios.tcsetattr(file, termios.TCSADRAIN, saved)
