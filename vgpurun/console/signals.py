"""Signals that vgpurun gets, and their effects.

An ending signal raises Interrupted, so that what was begun is undone; while something is made that must not be left
half made, it is held back. Once a container's command runs, signals are the command's.
"""

import os
import queue
import select
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType, TracebackType
from typing import NoReturn

from vgpurun.util.threads import ENDING, Helper

CTRL_C = (signal.SIGINT,)
_OTHERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP)
# Never relayed: what cannot be caught, what is about this very process, and what stops a reader of the terminal.
_OUR_OWN = (
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGURG, signal.SIGSEGV, signal.SIGBUS,
    signal.SIGFPE, signal.SIGILL, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
ALL = (*ENDING, *_OTHERS)
EVERY = frozenset(signal.valid_signals()) - frozenset(_OUR_OWN)
# So many of these while the command runs, and the user wants to go, whatever the command does (as docker has it).
_LEAVING = (signal.SIGINT, signal.SIGTERM)
_LEAVES_AT = 3
_WOKEN_EVERY_S = 0.02  # until it has run the handlers; once is nearly always enough
_AGAIN = b"\0"  # no signal has this number


class Interrupted(BaseException):
    """An ending signal came before the command ran."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class AbandonedError(Interrupted):
    """The user has had enough of a command that goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 1


def interrupt_of(error: BaseException | None) -> Interrupted | None:
    """Return the Interrupted that an error came of, if it did.

    Python's own code is not ready for one everywhere. os.stat() of Debian 12's 3.11.2 goes on with it, and the next
    call raises SystemError (CPython's issue 109613); Thread.join() can release a lock that it has not.
    """
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return error


class _Waker(Helper):
    """Interrupts the main thread until it has run the handlers of a signal that came, while it is entered.

    Python notes a signal and runs its handler between two steps of the main thread. One that comes right before the
    main thread waits in a system call does not interrupt that call, and would be handled when something else does.
    `handle` is called in the main thread each time that it is woken.
    """

    _SIGNAL = signal.SIGURG  # by default it is ignored, and it is not relayed

    def __init__(self, handle: Callable[[FrameType | None], object]) -> None:
        super().__init__(self._wake)
        self._woken = handle  # a Thread of Python 3.13 has a _handle of its own
        self._main = threading.get_ident()
        self._has_run = self._is_over = False

    def __enter__(self) -> None:
        self._noted, self._note = os.pipe()
        os.set_blocking(self._note, False)
        self._previous_handler = signal.signal(self._SIGNAL, self._note_run)
        self._previous_note = signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)
        self.start()

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        signal.set_wakeup_fd(self._previous_note)
        signal.signal(self._SIGNAL, self._previous_handler or signal.SIG_DFL)
        os.close(self._note)

    def again(self) -> None:
        """Wake the main thread in a moment."""
        with suppress(OSError):  # already closed, or the pipe is full
            os.write(self._note, _AGAIN)

    def _note_run(self, _: int, frame: FrameType | None) -> None:
        self._has_run = True
        self._woken(frame)

    def _wake(self) -> None:
        while numbers := os.read(self._noted, select.PIPE_BUF):
            if _AGAIN in numbers:
                time.sleep(_WOKEN_EVERY_S)
            self._has_run = not set(numbers) - {self._SIGNAL}
            while not (self._has_run or self._is_over):
                signal.pthread_kill(self._main, self._SIGNAL)
                time.sleep(_WOKEN_EVERY_S)
        os.close(self._noted)


class Signals:
    """Takes these of the process's signals while it is entered; only in the main thread.

    Python raises Interrupted between any two steps, so also where errors are printed and dropped (a callback, a
    __del__), and where one breaks an import. A dropped one is raised again, until it gets out; an import is waited for.
    """

    def __init__(self, numbers: Collection[int] = ALL) -> None:
        self._first = numbers
        self._waker = _Waker(self._handle_again)
        self._previous: dict[int, object] = {}
        self._holding = 0
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # may be filled from a signal's handler
        self._held: list[int] = []
        self._put_off: deque[int] = deque()
        self._raised: weakref.ref[Interrupted] | None = None
        self._relay: Helper | None = None
        self._relayed: Collection[int] = ()
        self._leaving = count(1)  # which of them comes next

    def __enter__(self) -> "Signals":
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._hear_of_dropped
        self._waker.__enter__()
        self.take(self._first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raised = None  # has got out
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]
        self._waker.__exit__()
        sys.unraisablehook = self._previous_hook
        self.stop_relaying()
        if self._put_off and kind is None:
            raise Interrupted(self._put_off[0])

    def take(self, numbers: Collection[int] = ALL) -> None:
        """Take these too from now on."""
        for number in numbers:
            # A signal that the caller ignores (nohup) stays ignored; one that is None belongs to the interpreter.
            if number not in self._previous and signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._previous[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._relay is not None and number in self._relayed:
            self._enqueue(number)
        elif self._holding:
            self._held.append(number)
        elif number in ENDING and _is_import(frame):
            self._put_off.append(number)
            self._waker.again()
        else:
            self._act_on(number)

    def _handle_again(self, frame: FrameType | None) -> None:
        with suppress(IndexError):
            self._handle(self._put_off.popleft(), frame)

    def _act_on(self, number: int) -> None:
        """Do what a signal asks for while no command runs. Raises Interrupted."""
        if number in ENDING:
            self._interrupt(Interrupted, number)
        if number == signal.SIGTSTP:
            signal.raise_signal(signal.SIGSTOP)

    def _interrupt(self, kind: type[Interrupted], number: int) -> NoReturn:
        error = kind(number)
        self._raised = weakref.ref(error, lambda _: self._raise_again(number))
        try:
            raise error
        finally:
            del error  # its traceback has this frame: it would outlive its being dropped

    def _raise_again(self, number: int) -> None:
        self._put_off.append(number)
        self._waker.again()

    def _hear_of_dropped(self, dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, Interrupted):
            self._previous_hook(dropped)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back; afterwards they are acted on, unless signals are relayed by then."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if not self._holding:
            self._act_on_held()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Hold no signal back for a time, nor any that came before."""
        holding, self._holding = self._holding, 0
        try:
            self._act_on_held()
            yield
        finally:
            self._holding = holding

    def _act_on_held(self) -> None:
        held, self._held = self._held, []  # nothing of what is relayed by now
        for number in held:
            self._act_on(number)

    def relay(self, send: Callable[[int], object], numbers: Collection[int] = EVERY) -> None:
        """Pass these signals to `send` from now on, from a thread of its own; those that were held back first.

        The third of SIGINT and SIGTERM raises AbandonedError, whether the command has heeded the first two or not.
        """
        self._relayed = numbers
        self.take(numbers)
        self._relay = Helper(self._pass_on, (send,))
        held, self._held = self._held, [number for number in self._held if number not in numbers]
        self._relay.start()
        for number in held:
            if number in numbers:
                self._enqueue(number)

    def _enqueue(self, number: int) -> None:
        """Have a signal passed on. Raises AbandonedError."""
        self._queue.put(number)
        # To count is one step: another signal's handler may run between any two.
        if number in _LEAVING and next(self._leaving) >= _LEAVES_AT:
            self._interrupt(AbandonedError, number)

    def stop_relaying(self) -> None:
        """Pass nothing on any more."""
        if self._relay is not None:
            self._queue.put(None)
            self._relay.join(timeout=5)
            self._relay = None

    def _pass_on(self, send: Callable[[int], object]) -> None:
        while (number := self._queue.get()) is not None:
            send(number)


def _is_import(frame: FrameType | None) -> bool:
    """Whether Python's import is among these steps."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


_SIGNAL_BYTES = 128  # sizeof(struct signalfd_siginfo)


class Ending:
    """Waits for SIGTERM, SIGINT or SIGHUP; only in the main thread, and entered before other threads begin.

    The signals are held back and fetched, since a handler may run in the middle of anything.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __enter__(self) -> "Ending":
        import ctypes  # most commands need none

        self._previous = signal.pthread_sigmask(signal.SIG_BLOCK, self._SIGNALS)
        # Python's sigtimedwait() returns what is no signal where SIGCONT comes after its time was over.
        mask = (ctypes.c_uint64 * 16)(sum(1 << (number - 1) for number in self._SIGNALS))
        self._file = ctypes.CDLL(None).signalfd(-1, mask, os.O_CLOEXEC)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._previous)

    def wait(self, timeout_s: float) -> bool:
        """Return whether one has come, after that time at most."""
        return bool(select.select([self._file], [], [], timeout_s)[0] and os.read(self._file, _SIGNAL_BYTES))
