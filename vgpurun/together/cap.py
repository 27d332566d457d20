"""Holds a group to its part of the GPUs' time: as one, for what stops one client's channels stops all of its server's.

After a period's work a client's channels are off for as long as it takes to earn what the group had. What a call takes,
and what the host is late, counts, of a host that stands still no more than a period. The time in which it is off the
GPU does not (beside.py). The server has channels of its own, which stop none.
A client's channels stop nothing on a GPU where it has none: on several GPUs those of all clients are switched.
By a client's channels the group has its time slice, too (slices.py).
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from vgpurun.errors import ChannelError
from vgpurun.host.channels import DEFAULT_SLICE_US, Driver, ProcessChannels
from vgpurun.util.process_identity import ProcessIdentity

_PERIOD_S = 0.04  # of the library's governors
_LEAST_S = 0.001  # that it works, and that it is off, in a period
_IDLE_S = 0.25
_SLICE_AGAIN_S = 0.5  # what is set before the driver schedules a group is lost
_LOOK_S, _RARELY = 0.5, 20  # from one look for more channels to the next, at the least, and in times of what it took
_HELD_IN_S = 10.0  # after which it is said that it is not held
_NOT_FOUND = "no channels of its programs are found that can be switched"
_TRIES, _AGAIN_S = 50, 0.02  # to put work back, whose contexts come and go meanwhile


class Cap:
    """The thread that switches. `percent` is the group's part, None without a limit; `slice_us` its time slice."""

    def __init__(
        self,
        libcuda: str,
        is_member: Callable[[ProcessIdentity], bool],
        away_s: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], object] = time.sleep,
        are_several: bool = False,
    ) -> None:
        """`is_member`: the daemon may name any process, where a container has put its own in its place.

        `away_s` returns for how long the group was off the GPUs since the last time. `are_several`: it has several.
        """
        self.percent: int | None = None
        self.clients: Sequence[ProcessIdentity] = ()
        self.trouble = self.slice_trouble = ""
        self.slice_us = self._asked_slice_us = DEFAULT_SLICE_US
        self._asked_s = self._sliced_s = time.monotonic()  # when it had that last, or there was nothing to ask
        self._libcuda = libcuda
        self._is_member = is_member
        self._away_s = away_s
        self._sleep = sleep
        self._are_several = are_several
        self._held: list[ProcessChannels] = []
        self._looks_s = 0.0  # when more is looked for
        self._is_off = False
        self._paid_s = time.monotonic()  # until when it has paid
        self._owed_s = 0.0  # what it had too much
        self._held_s = self._paid_s  # when its work was off last, or nothing was to be held
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it go on, and end."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._do_period()
            except Exception:  # it ended just now, or changes what it has; a mistake of ours must leave nothing off
                with suppress(ChannelError):
                    self._let_go(self._held)
                self._ends.wait(_PERIOD_S)
        with suppress(ChannelError):  # the keeper ends the server next
            self._let_go(self._held)

    def _do_period(self) -> None:
        percent = self.percent
        if percent is None or not self.clients:
            self._note_held()
        elif time.monotonic() - self._held_s > _HELD_IN_S:
            self.trouble = _NOT_FOUND
        self._follow()
        self._set_slice()
        if not self._held or percent is None:
            self._turn(False)
            self._ends.wait(_IDLE_S)
            self._paid_s, self._owed_s = time.monotonic(), 0.0
            return
        part = percent / 100
        self._away_s()
        self._sleep(max(_LEAST_S, part * _PERIOD_S - (time.monotonic() - self._paid_s)))
        self._pay(part, self._away_s())
        if self._owed_s < part * _LEAST_S:
            self._note_held()
            return
        self._turn(True)
        self._pay(part, self._away_s())
        self._sleep(min(self._owed_s / part, _IDLE_S))
        self._turn(False)
        self._pay(part, is_off=True)

    def _pay(self, part: float, away_s: float = 0.0, is_off: bool = False) -> None:
        """Charge the time since the last call, and add what the group earns in it."""
        passed_s = time.monotonic() - self._paid_s
        had_s = 0.0 if is_off else max(0.0, passed_s - away_s)
        self._owed_s = max(-_PERIOD_S, min(self._owed_s + had_s - part * passed_s, _PERIOD_S))
        self._paid_s += passed_s

    def _follow(self) -> None:
        """Have the channels of a client that there is now, the same one as long as it lives, or those of all.

        Raises ChannelError.
        """
        self._let_go([each for each in self._held if each.process not in self.clients])
        is_looking = not self._held or (self._are_several and time.monotonic() >= self._looks_s)
        if is_looking and (self.percent is not None or self._has_slice()):
            began_s = time.monotonic()
            self._look()
            ended_s = time.monotonic()
            self._looks_s = ended_s + max(_LOOK_S, _RARELY * (ended_s - began_s))

    def _look(self) -> None:
        """Raises ChannelError, as where a client has none any more: all are found anew then."""
        for each in self._held:
            each.find(is_quick=True)
        known = [each.process for each in self._held]
        found = filter(None, (self._found(each) for each in self.clients if each not in known))
        self._held += found if self._are_several else islice(found, 1)

    def _has_slice(self) -> bool:
        """Whether its slice is to be another than the driver's own, or may be."""
        return self.slice_us != DEFAULT_SLICE_US or self._asked_slice_us != DEFAULT_SLICE_US

    def _set_slice(self) -> None:
        """Raises ChannelError."""
        now_s = time.monotonic()
        if not self.clients or not self._has_slice():
            self._sliced_s, self.slice_trouble = now_s, ""
        elif self._held and (self.slice_us != self._asked_slice_us or now_s >= self._asked_s + _SLICE_AGAIN_S):
            self._asked_s, self._asked_slice_us = now_s, self.slice_us
            if self._is_sliced():
                self._sliced_s, self.slice_trouble = now_s, ""
            elif self.percent is None:  # else its time is held all the same
                self._let_go(self._held)
        if now_s > self._sliced_s + _HELD_IN_S:
            self.slice_trouble = _NOT_FOUND

    def _is_sliced(self) -> bool:
        groups = 0
        for each in self._held:
            with suppress(ChannelError):
                groups += each.set_slice(self.slice_us)
        return groups > 0

    def _note_held(self) -> None:
        self._held_s, self.trouble = time.monotonic(), ""

    def _found(self, client: ProcessIdentity) -> ProcessChannels | None:
        """Return the channels of a client, None where it has none yet, or they cannot be found."""
        if not self._is_member(client):
            return None
        channels = ProcessChannels(client, Driver(self._libcuda))
        try:
            if channels.find():
                return channels
        except ChannelError:
            pass
        channels.close()
        return None

    def _let_go(self, leaving: Sequence[ProcessChannels]) -> None:
        """Put back what is off of these, and forget it. Raises ChannelError where it stays off, for another try."""
        put_back = [each for each in leaving if self._is_put_back(each)]
        for each in put_back:
            each.close()
        self._held = [each for each in self._held if each not in put_back]
        if left := [each for each in leaving if each not in put_back]:
            raise ChannelError(f"the driver does not put back process {left[0].process.pid}")
        if not self._held:
            self._is_off, self._owed_s, self._paid_s = False, 0.0, time.monotonic()

    def _is_put_back(self, channels: ProcessChannels) -> bool:
        for _ in range(_TRIES):
            with suppress(Exception):  # a mistake of ours must leave nothing off
                channels.switch(False)
                return True
            if not channels.process.is_alive():
                return True  # it leaves nothing off
            self._sleep(_AGAIN_S)
        return False

    def _turn(self, off: bool) -> None:
        if not self._held or off == self._is_off:
            return
        counts = [each.switch(off) for each in self._held]
        self._is_off = off
        if off and not any(counts):
            raise ChannelError("the client has freed its channels; another may have some")
        if off:
            self._note_held()
