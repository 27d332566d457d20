"""Takes processes off their GPUs and puts them back, for a guard that it outlives: it puts back whatever is off then.

    main(LIBCUDA)

reads lines: off PID TICKS, on PID TICKS, and keep PID TICKS of one that may be off. TICKS is when it was started. Each
is answered by how many channels there are, or by "! " and why not. At the end of its input it puts back what is off.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from vgpurun.errors import ChannelError
from vgpurun.host.channels import Driver, ProcessChannels
from vgpurun.util.process_identity import ProcessIdentity, boot_id

OFF, ON, KEEP = "off", "on", "keep"
READY = "ready"
_LOOK_EVERY_S = 1.0  # a look asks the driver some 500 times
_HIDDEN_AT_MOST_S = 30.0
_PIECE_BYTES = 4096  # of its input
_TRIES, _AGAIN_S = 50, 0.02  # to put one back, whose contexts come and go meanwhile


class _Hidden(NamedTuple):
    """A process of which nothing was found: why, and when it is looked for again."""

    trouble: str
    pause_s: float
    again_at_s: float


class Keeper:
    """The processes that are off, or may be, and the channels of those that were."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._off: set[ProcessIdentity] = set()
        self._kept: set[ProcessIdentity] = set()  # those that a keeper before this one may have taken off
        self._channels: dict[ProcessIdentity, ProcessChannels] = {}
        self._looked_s: dict[ProcessIdentity, float] = {}
        self._hidden: dict[ProcessIdentity, _Hidden] = {}

    def answer(self, line: str) -> str:
        """Do what a line says; return the answer to it."""
        verb, pid, ticks = line.split()
        process = ProcessIdentity(int(pid), int(ticks), boot_id())
        self._off.add(process)  # from now on, whatever comes
        if verb == KEEP:
            self._kept.add(process)
        try:
            return "0" if verb == KEEP else str(self._switch(process, verb == OFF))
        except ChannelError as error:
            return f"! {error}"
        except Exception as error:  # a mistake about one process must not end the keeper of all
            return f"! {error!r}"

    def _switch(self, process: ProcessIdentity, off: bool) -> int:
        if process not in self._channels:
            self._channels[process] = ProcessChannels(process, self._driver)
        is_due = time.monotonic() >= self._looked_s.get(process, 0.0) + _LOOK_EVERY_S
        if (off and is_due) or process in self._kept:
            self._look(process)
        # A process of which nothing was found is on, unless a keeper before this one had found something.
        count = self._channels[process].switch(off)
        self._kept.discard(process)
        if not off:
            self._off.discard(process)
        return count

    def _look(self, process: ProcessIdentity) -> None:
        """Look for what it has made since the last time. Raises ChannelError.

        Where nothing is found it is looked for less and less often: a process's memory may be large.
        """
        hidden = self._hidden.get(process)
        if hidden and time.monotonic() < hidden.again_at_s:
            raise ChannelError(hidden.trouble)
        try:
            self._channels[process].find()
        except ChannelError as error:
            pause_s = min(2 * hidden.pause_s, _HIDDEN_AT_MOST_S) if hidden else _LOOK_EVERY_S
            self._hidden[process] = _Hidden(str(error), pause_s, time.monotonic() + pause_s)
            raise
        self._hidden.pop(process, None)
        self._looked_s[process] = time.monotonic()

    def let_go(self) -> None:
        """Let go of what has ended or become another program, of which nothing is off.

        The driver frees what a process has had when the last has closed its files.
        """
        for process in {*self._channels, *self._off}:
            if not process.is_alive():
                self._forget(process)
            elif process in self._channels and not self._channels[process].are_its_own():
                with suppress(ChannelError):  # it may have its channels by a duplicate of its own
                    self._channels[process].switch(False)
                self._forget(process)

    def _forget(self, process: ProcessIdentity) -> None:
        self._off.discard(process)
        self._kept.discard(process)
        if process in self._channels:
            self._channels.pop(process).close()
        self._looked_s.pop(process, None)
        self._hidden.pop(process, None)

    def put_back(self) -> None:
        """Put back all that is off."""
        self._hidden.clear()  # there is no later look
        for _ in range(_TRIES):
            for process in list(self._off):
                with suppress(Exception):  # the others come back all the same
                    self._switch(process, False)
            self.let_go()
            if not self._off:
                return
            time.sleep(_AGAIN_S)


def main(libcuda: str) -> None:
    """Answer lines until there are no more. What ends a guard ends this only then."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    try:
        keeper = Keeper(Driver(libcuda))
    except ChannelError as error:
        os.write(1, f"! {error}\n".encode())
        return
    try:
        os.write(1, f"{READY}\n".encode())
        for line in _lines(keeper.let_go):
            os.write(1, f"{keeper.answer(line)}\n".encode())
    except BrokenPipeError:
        pass  # the guard was killed
    finally:
        keeper.put_back()


def _lines(at_times: Callable[[], None]) -> Iterator[str]:
    """Yield the lines of the input; `at_times` is called once a second, also while there are none."""
    called_s, read = time.monotonic(), b""
    while True:
        is_there = select.select([0], [], [], _LOOK_EVERY_S)[0]
        if time.monotonic() >= called_s + _LOOK_EVERY_S:
            at_times()
            called_s = time.monotonic()
        if not is_there:
            continue
        if not (piece := os.read(0, _PIECE_BYTES)):
            return
        *lines, read = (read + piece).split(b"\n")
        yield from (line.decode() for line in lines)
