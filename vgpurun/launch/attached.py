"""Runs a container that was made, with this process's standard streams, signals and terminal as its own."""

import errno
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext

from vgpurun.console import terminal
from vgpurun.console.signals import EVERY, Signals
from vgpurun.console.streams import Input, copy_output
from vgpurun.engine.launches import LaunchEngine
from vgpurun.errors import OutputError
from vgpurun.options import ContainerOptions
from vgpurun.options.values import detach_keys

_HANDED_OVER_S = 0.1  # within this a request has reached the engine
_SIGPIPE_EXIT_CODE = 128 + signal.SIGPIPE
# Without --sig-proxy these are still looked at: they are about our terminal, not about the command.
_OF_TERMINAL = frozenset({signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT})


class AttachedRun:
    """A run of a container, from its start to its end or until it is left with the detach keys."""

    def __init__(self, engine: LaunchEngine, container: str, options: ContainerOptions, signals: Signals) -> None:
        self._engine = engine
        self._container = container
        self._options = options
        self._signals = signals
        self.has_ended = False
        self._has_keyboard = options.tty and options.takes_input and terminal.is_terminal(0)
        self._terminal = terminal.Raw() if self._has_keyboard else None

    def run(self, started: Callable[[], object]) -> int:
        """Start the container and return its exit code, or 0 when it was left. `started` is called once it runs.

        Raises EngineError, OutputError, the errors of a command that cannot be started, and Interrupted.
        """
        options = self._options
        keys = options.detach_keys or self._engine.configured_detach_keys()
        stream = self._engine.attach(self._container, options.streams, keys)
        wait = self._engine.expect_end(self._container, is_removed=options.remove)
        typed = Input(stream, detach_keys(keys) if self._has_keyboard else b"")
        with self._terminal or nullcontext():
            with self._signals.held():
                self._engine.start(self._container)
                started()
                self._signals.relay(self._answer, EVERY if options.relays_signals else _OF_TERMINAL)
            if options.tty:
                self._answer(signal.SIGWINCH)  # an older engine does not heed the size that it was told before
            if options.takes_input:
                typed.start()
            try:
                copy_output(stream, is_terminal=options.tty)
            except OSError as error:
                stream.shutdown(socket.SHUT_RDWR)  # unread output would hold the engine up
                return self._end_unheard(error, wait)
            if typed.is_detached:
                return 0
            if self._has_keyboard and typed.is_at_end:  # the engine ends the output with it, and the container goes on
                self._engine.stop(self._container)
            exit_code = wait()
            self.has_ended = True
            return exit_code

    def _end_unheard(self, error: OSError, wait: Callable[[], int]) -> int:
        """End a container whose output goes nowhere. docker would leave it running, with its GPU.

        Behind a closed pipe is a shell that waits for this process, so there the engine goes on alone.
        """
        if error.errno == errno.EPIPE:
            self._engine.stop(self._container, patience_s=_HANDED_OVER_S)
            return _SIGPIPE_EXIT_CODE
        self._engine.stop(self._container)
        wait()
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"the container's output cannot be written: {error.strerror}; it was stopped") from None
        return _SIGPIPE_EXIT_CODE

    def _answer(self, number: int) -> None:
        """Do what a signal asks for; in a thread of its own."""
        if number == signal.SIGWINCH and self._options.tty:
            if size := terminal.size():
                self._engine.resize(self._container, *size)
            return
        if self._options.relays_signals:
            self._engine.kill(self._container, number)
        if number == signal.SIGTSTP:
            self._pause()

    def _pause(self) -> None:
        """Stop this process as Ctrl-Z means, until the shell continues it."""
        with self._terminal.lent() if self._terminal else nullcontext():
            signal.raise_signal(signal.SIGSTOP)  # this thread goes on for a while after a signal to the whole process
        # Ours may have another size by now.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGWINCH)
