"""What happens to the signals that vgpurun gets.

Before the command runs, an ending signal raises Interrupted, so that what was begun is undone; while something is made
that must not be left half made, it is held back. Once the command runs, signals are the command's.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_OTHERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH)
_IMPATIENT_S = 2.0  # three ending signals in this time: the user wants an end now


class Interrupted(BaseException):
    """An ending signal came before the command ran."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Signals:
    """Takes the process's signals while it is entered; only in the main thread."""

    def __init__(self) -> None:
        self._previous: dict[int, object] = {}
        self._holding = 0
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # may be filled from a signal's handler
        self._held: list[int] = []
        self._relay: threading.Thread | None = None
        self._ending_times: list[float] = []

    def __enter__(self) -> "Signals":
        for number in (*_ENDING, *_OTHERS):
            # What the caller ignores (nohup) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]
        self.stop_relaying()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._relay is not None:
            self._queue.put(number)
        elif self._holding:
            self._held.append(number)
        elif number in _ENDING:
            raise Interrupted(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back; afterwards an ending one raises Interrupted, unless signals are relayed by then."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if not self._holding and self._relay is None:
            for number in self._held:
                if number in _ENDING:
                    raise Interrupted(number)

    def relay(self, send: Callable[[int], None]) -> None:
        """From now on pass every signal to `send`, from a thread of its own; those that were held back first."""
        self._relay = threading.Thread(target=self._pass_on, args=(send,), daemon=True)
        for number in self._held:
            self._queue.put(number)
        self._held.clear()
        self._relay.start()

    def stop_relaying(self) -> None:
        """Pass nothing on any more."""
        if self._relay is not None:
            self._queue.put(None)
            self._relay.join(timeout=5)
            self._relay = None

    def _pass_on(self, send: Callable[[int], None]) -> None:
        while (number := self._queue.get()) is not None:
            if number in _ENDING:
                now = time.monotonic()
                self._ending_times = [then for then in self._ending_times if now - then < _IMPATIENT_S] + [now]
            send(signal.SIGKILL if len(self._ending_times) >= 3 else number)
            if len(self._ending_times) >= 3:
                self._ending_times.clear()
