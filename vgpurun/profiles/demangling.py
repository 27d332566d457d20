"""C++ names of kernels. A short symbol can stand for gigabytes: the demangler is another process, which is bounded."""

from __future__ import annotations

import atexit
import os
import re
import select
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

_SYMBOL = re.compile(r"_Z[\w.$]{1,8000}", re.ASCII)
_PATIENCE_S = 2.0  # for a symbol
_MOST_CHILDREN = 3  # then symbols stay as they are
_PROGRAM = Path(__file__).with_name("demangler.py")


@cache
def demangled(symbol: str) -> str:
    """Return a C++ symbol's name, cut where it is very long; any other text, and what takes too long, as it is."""
    return Demangler.only.ask(symbol) if _SYMBOL.fullmatch(symbol) else symbol


class Demangler:
    """The other process, started when it is needed first and again when it had to be ended; `started` counts that."""

    only: Demangler

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self.started = 0

    def ask(self, symbol: str) -> str:
        """Return the name of a symbol, or the symbol where no name comes in time."""
        try:
            if self._child is None:
                if self.started == _MOST_CHILDREN:
                    return symbol
                self._start()
            return self._answer(symbol)
        except OSError:
            self.end()
            return symbol

    def _start(self) -> None:
        self.started += 1
        command = [sys.executable, "-I", "-S", str(_PROGRAM)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)

    def _answer(self, symbol: str) -> str:
        """Raise OSError where there is none."""
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(symbol.encode() + b"\n")
        child.stdin.flush()
        answer, until_s = b"", time.monotonic() + _PATIENCE_S
        while not answer.endswith(b"\n"):
            is_there, _, _ = select.select([child.stdout], [], [], max(0, until_s - time.monotonic()))
            more = os.read(child.stdout.fileno(), 1 << 16) if is_there else b""
            if not more:
                raise OSError("no answer")
            answer += more
        return answer[:-1].decode(errors="replace")

    def end(self) -> None:
        """End the other process, if there is one."""
        if self._child is None:
            return
        self._child.kill()
        self._child.communicate()
        self._child = None


Demangler.only = Demangler()
atexit.register(Demangler.only.end)
