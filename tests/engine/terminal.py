"""A terminal with a program in it, as a person at a keyboard has."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence


class Terminal:
    """A pseudo terminal whose far end is the standard input, output and error of a process in a session of its own."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], rows: int = 24, columns: int = 80) -> None:
        self.near, self.far = pty.openpty()
        self.resize(rows, columns, tell=False)
        self.settings = termios.tcgetattr(self.far)
        self.output = b""
        self.process = subprocess.Popen(
            command, env=environment, stdin=self.far, stdout=self.far, stderr=self.far, preexec_fn=self._take_terminal
        )

    def _take_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(self.far, termios.TIOCSCTTY, 0)

    def type(self, keys: bytes) -> None:
        os.write(self.near, keys)

    def resize(self, rows: int, columns: int, *, tell: bool = True) -> None:
        """Give the terminal another size. The kernel tells the foreground process with SIGWINCH."""
        fcntl.ioctl(self.near if tell else self.far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, text: bytes, timeout_s: float = 60) -> bytes:
        """Return the output from where the last call ended up to ``text``; what follows is the next call's."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            ready, _, _ = select.select([self.near], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {text!r} within {timeout_s} s in {self.output!r}"
            self.output += os.read(self.near, 65536)
        end = self.output.index(text) + len(text)
        read, self.output = self.output[:end], self.output[end:]
        return read

    def wait(self, timeout_s: float = 60) -> int:
        """Wait for the process to end; returns its exit code."""
        return self.process.wait(timeout_s)

    def is_restored(self) -> bool:
        """Whether the terminal's settings are those that it started with."""
        return termios.tcgetattr(self.far) == self.settings

    def hang_up(self) -> None:
        """Close the terminal's window."""
        os.close(self.near)
        self.near = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.near >= 0:
            os.close(self.near)
        os.close(self.far)
