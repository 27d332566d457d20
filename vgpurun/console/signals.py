"""Signals that vgpurun gets, and their effects.

Before the command runs, an ending signal raises Interrupted, so that what was begun is undone; while something is made
that must not be left half made, it is held back. Once the command runs, signals are the command's.
"""

import os
import queue
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from vgpurun.util.threads import Helper

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_OTHERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP)
# Never relayed: what cannot be caught, what is about this very process, and what stops a reader of the terminal.
_OUR_OWN = (
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGURG, signal.SIGSEGV, signal.SIGBUS,
    signal.SIGFPE, signal.SIGILL, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
EVERY = frozenset(signal.valid_signals()) - frozenset(_OUR_OWN)
# So many ending signals in this time: the user wants an end now; or even without the engine.
_IMPATIENT_S = 2.0
_IMPATIENT, _DESPERATE = 3, 6
_WOKEN_EVERY_S = 0.02  # until it has run the handlers; once is nearly always enough


class Interrupted(BaseException):
    """An ending signal came before the command ran."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def _act_on(number: int) -> None:
    """Do what a signal asks for while the command does not run yet. Raises Interrupted."""
    if number in _ENDING:
        raise Interrupted(number)
    if number == signal.SIGTSTP:
        signal.raise_signal(signal.SIGSTOP)


class _Waker(Helper):
    """Interrupts the main thread until it has run the handlers of a signal that came, while it is entered.

    Python notes a signal and runs its handler between two steps of the main thread. One that comes right before the
    main thread waits in a system call does not interrupt that call, and would be handled when something else does.
    """

    _SIGNAL = signal.SIGURG  # by default it is ignored, and it is not relayed

    def __init__(self) -> None:
        super().__init__(self._wake)
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

    def _note_run(self, *_: object) -> None:
        self._has_run = True

    def _wake(self) -> None:
        while numbers := os.read(self._noted, select.PIPE_BUF):
            self._has_run = not set(numbers) - {self._SIGNAL}
            while not (self._has_run or self._is_over):
                signal.pthread_kill(self._main, self._SIGNAL)
                time.sleep(_WOKEN_EVERY_S)
        os.close(self._noted)


class Signals:
    """Takes the process's signals while it is entered; only in the main thread."""

    def __init__(self) -> None:
        self._waker = _Waker()
        self._previous: dict[int, object] = {}
        self._holding = 0
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # may be filled from a signal's handler
        self._held: list[int] = []
        self._relay: Helper | None = None
        self._relayed: Collection[int] = ()
        self._ending_times: deque[float] = deque(maxlen=_DESPERATE)

    def __enter__(self) -> "Signals":
        self._waker.__enter__()
        self._take((*_ENDING, *_OTHERS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]
        self._waker.__exit__()
        self.stop_relaying()

    def _take(self, numbers: Collection[int]) -> None:
        for number in numbers:
            # A signal that the caller ignores (nohup) stays ignored; one that is None belongs to the interpreter.
            if number not in self._previous and signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._previous[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._relay is not None and number in self._relayed:
            if self._enqueue(number) >= _DESPERATE:
                raise Interrupted(number)
        elif self._holding:
            self._held.append(number)
        else:
            _act_on(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back; afterwards they are acted on, unless signals are relayed by then."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if not self._holding:
            held, self._held = self._held, []  # nothing of what is relayed by now
            for number in held:
                _act_on(number)

    def relay(self, send: Callable[[int], object], numbers: Collection[int] = EVERY) -> None:
        """From now on pass these signals to `send`, from a thread of its own; those that were held back first.

        Three ending signals in two seconds become SIGKILL. Six raise Interrupted: the engine does not answer.
        """
        self._relayed = numbers
        self._take(numbers)
        self._relay = Helper(self._pass_on, (send,))
        for number in self._held:
            if number in numbers:
                self._enqueue(number)
        self._held = [number for number in self._held if number not in numbers]
        self._relay.start()

    def _enqueue(self, number: int) -> int:
        """Have a signal passed on; return how many ending signals came in a row, 0 if it is none."""
        if number not in _ENDING:
            self._queue.put(number)
            return 0
        self._ending_times.append(time.monotonic())  # in one step, since another handler may run after any
        times = tuple(self._ending_times)
        in_a_row = sum(times[-1] - then < _IMPATIENT_S for then in times)
        self._queue.put(signal.SIGKILL if in_a_row >= _IMPATIENT else number)
        return in_a_row

    def stop_relaying(self) -> None:
        """Pass nothing on any more."""
        if self._relay is not None:
            self._queue.put(None)
            self._relay.join(timeout=5)
            self._relay = None

    def _pass_on(self, send: Callable[[int], object]) -> None:
        while (number := self._queue.get()) is not None:
            send(number)


class Ending:
    """Waits for SIGTERM, SIGINT or SIGHUP; only in the main thread, and entered before other threads begin.

    The signals are held back and fetched, since a handler may run in the middle of anything.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __enter__(self) -> "Ending":
        self._previous = signal.pthread_sigmask(signal.SIG_BLOCK, self._SIGNALS)
        return self

    def __exit__(self, *error: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._previous)

    def wait(self, timeout_s: float) -> bool:
        """Return whether one has come, after that time at most."""
        return signal.sigtimedwait(self._SIGNALS, timeout_s) is not None
