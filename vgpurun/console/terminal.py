"""This process's terminal: raw while a container's terminal is shown in it, and as it was before afterwards."""

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


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


class Raw:
    """Passes every key on as it is typed while entered; the terminal is as before in the end, however that comes."""

    def __init__(self, file: int = 0) -> None:
        self._file = file
        self._saved: list[Any] = []

    def __enter__(self) -> None:
        self._saved = termios.tcgetattr(self._file)
        tty.setraw(self._file, termios.TCSADRAIN)

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _restore(self) -> None:
        # In the background only a process that does not heed SIGTTOU may do so.
        with _without_stops(), suppress(OSError, termios.error):  # the terminal may be gone
            sys.stdout.flush()
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._saved)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give the terminal back for a time."""
        self._restore()
        try:
            yield
        finally:
            with suppress(OSError, termios.error):
                tty.setraw(self._file, termios.TCSADRAIN)


@contextmanager
def _without_stops() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
