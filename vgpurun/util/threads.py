"""Threads beside the main one, which alone runs signal handlers, and code that no signal may cut in two."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ALL = signal.valid_signals()
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Helper(threading.Thread):
    """A thread that is left behind at the end, and that no signal is given to.

    The kernel gives a signal to any thread that takes it. The main thread, where it waits in a system call, would then
    sleep on, and run the handler when something else wakes it.
    """

    def __init__(self, target: Callable[..., object] | None = None, args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, args=args, daemon=True)

    def start(self) -> None:
        """Begin; the new thread has the mask of the one that starts it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ended_by_errors() -> Iterator[list[str]]:
    """Yield a list that each thread is added to which an error ends from now on: a program may be useless without it.

    The error is shown on stderr as ever.
    """
    ended: list[str] = []
    show = threading.excepthook

    def note(error: threading.ExceptHookArgs) -> None:
        name = error.thread.name if error.thread else "unknown"
        ended.append(f"thread '{name}' ended with {error.exc_type.__name__}: {' '.join(str(error.exc_value).split())}")
        show(error)

    threading.excepthook = note
    try:
        yield ended
    finally:
        threading.excepthook = show


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off the signals that end a command, to this thread, until the end of this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
