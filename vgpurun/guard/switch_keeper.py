"""Takes processes off their GPUs and puts them back, for a guard that it outlives: it puts back whatever is off then.

    main(LIBCUDA)

reads lines: off PID TICKS, on PID TICKS, keep PID TICKS of one that may be off, and slice PID TICKS US for its time
slice, which is the driver's own again by US 0. TICKS is when it was started. Each is answered by a line: how many
channels there are, or "! " and why not. Lines that come at once are answered at once. At the end of its input it puts
back what is off, and all time slices.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from vgpurun.errors import ChannelError
from vgpurun.host.channels import DEFAULT_SLICE_US, Driver, ProcessChannels
from vgpurun.util.process_identity import ProcessIdentity, boot_id

OFF, ON, KEEP, SLICE = "off", "on", "keep", "slice"
READY = "ready"
_LOOK_EVERY_S, _LOOK_WELL_EVERY_S = 1.0, 8.0  # the latter asks the driver some 500 times, the other ones 64 times
_HIDDEN_AT_MOST_S = 30.0
_PIECE_BYTES = 4096  # of its input
_KEPT_S = 0.1  # an answer, at most, while others are made
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
        self._taken: dict[ProcessIdentity, int] = {}  # those that are off for certain, and how many channels of each
        self._sliced: set[ProcessIdentity] = set()  # those that may have another time slice than the driver's own
        self._channels: dict[ProcessIdentity, ProcessChannels] = {}
        self._looked_s: dict[ProcessIdentity, float] = {}
        self._looked_well_s: dict[ProcessIdentity, float] = {}
        self._hidden: dict[ProcessIdentity, _Hidden] = {}

    def answer(self, line: str) -> str:
        """Do what a line says; return the answer to it."""
        verb, pid, ticks, *more = line.split()
        process = ProcessIdentity(int(pid), int(ticks), boot_id())
        (self._sliced if verb == SLICE else self._off).add(process)  # from now on, whatever comes
        if verb == KEEP:
            self._kept.add(process)
        try:
            return "0" if verb == KEEP else str(self._done(verb, process, *map(int, more)))
        except ChannelError as error:
            return f"! {' '.join(str(error).split())}"
        except Exception as error:  # a mistake about one process must not end the keeper of all
            return f"! {error!r}"

    def _done(self, verb: str, process: ProcessIdentity, slice_us: int = 0) -> int:
        return self._slice(process, slice_us) if verb == SLICE else self._switch(process, verb == OFF)

    def _slice(self, process: ProcessIdentity, slice_us: int) -> int:
        """Raises ChannelError. What it makes later has the driver's own slice until it is asked for again."""
        self._look(process)
        self._channels[process].set_slice(slice_us or DEFAULT_SLICE_US)
        if not slice_us:
            self._sliced.discard(process)
        return 1

    def _switch(self, process: ProcessIdentity, off: bool) -> int:
        is_due = time.monotonic() >= self._looked_s.get(process, 0.0) + _LOOK_EVERY_S
        if off and process in self._taken and not is_due:
            return self._taken[process]  # nothing has been looked for since
        self._taken.pop(process, None)
        if (off and is_due) or process in self._kept:
            self._look(process)
        # A process of which nothing was found is on, unless a keeper before this one had found something.
        channels = self._channels_of(process)
        if off and process in self._kept:
            channels.switch(False)  # the driver counts, and it has to be off once
        count = channels.switch(off)
        self._kept.discard(process)
        if off:
            self._taken[process] = count
        else:
            self._off.discard(process)
        return count

    def _channels_of(self, process: ProcessIdentity) -> ProcessChannels:
        if process not in self._channels:
            self._channels[process] = ProcessChannels(process, self._driver)
        return self._channels[process]

    def _look(self, process: ProcessIdentity) -> None:
        """Look for what it has made since the last time. Raises ChannelError.

        Where nothing is found it is looked for less and less often: a process's memory may be large.
        """
        self._taken.pop(process, None)
        hidden = self._hidden.get(process)
        if hidden and time.monotonic() < hidden.again_at_s:
            raise ChannelError(hidden.trouble)
        now_s = time.monotonic()
        is_quick = now_s < self._looked_well_s.get(process, float("-inf")) + _LOOK_WELL_EVERY_S
        try:
            self._channels_of(process).find(is_quick)
        except ChannelError as error:
            pause_s = min(2 * hidden.pause_s, _HIDDEN_AT_MOST_S) if hidden else _LOOK_EVERY_S
            self._hidden[process] = _Hidden(str(error), pause_s, time.monotonic() + pause_s)
            raise
        self._hidden.pop(process, None)
        self._looked_s[process] = now_s
        if not is_quick:
            self._looked_well_s[process] = now_s

    def let_go(self) -> None:
        """Let go of what has ended or become another program, of which nothing is off.

        The driver frees what a process has had when the last has closed its files.
        """
        for process in {*self._channels, *self._off, *self._sliced}:
            if not process.is_alive():
                self._forget(process)
            elif process in self._channels and not self._channels[process].are_its_own():
                with suppress(ChannelError):  # it may have its channels by a duplicate of its own
                    self._channels[process].switch(False)
                self._forget(process)

    def _forget(self, process: ProcessIdentity) -> None:
        for each in (self._off, self._kept, self._sliced):
            each.discard(process)
        if process in self._channels:
            self._channels.pop(process).close()
        self._taken.pop(process, None)
        self._looked_s.pop(process, None)
        self._looked_well_s.pop(process, None)
        self._hidden.pop(process, None)

    def put_back(self) -> None:
        """Put back all that is off, and the driver's own time slices."""
        self._hidden.clear()  # there is no later look
        for _ in range(_TRIES):
            for process in list(self._off):
                with suppress(Exception):  # the others come back all the same
                    self._switch(process, False)
            for process in list(self._sliced):
                with suppress(Exception):
                    self._slice(process, 0)
            self.let_go()
            if not self._off and not self._sliced:
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
        for lines in _lines(keeper.let_go):
            _answer(keeper, lines)
    except BrokenPipeError:
        pass  # the guard was killed
    finally:
        keeper.put_back()


def _answer(keeper: Keeper, lines: Sequence[str]) -> None:
    """Answer all lines by one write, but hold no answer up by what takes long: the guard waits for each a time only."""
    answers, began_s = "", time.monotonic()
    for line in lines:
        answers += f"{keeper.answer(line)}\n"
        if time.monotonic() >= began_s + _KEPT_S:
            os.write(1, answers.encode())
            answers, began_s = "", time.monotonic()
    os.write(1, answers.encode())


def _lines(at_times: Callable[[], None]) -> Iterator[Sequence[str]]:
    """Yield the lines of the input that are there; `at_times` is called once a second, also while there are none."""
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
        yield [line.decode() for line in lines]
