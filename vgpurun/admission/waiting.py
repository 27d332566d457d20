"""How a launch waits for room: in the queue, or for a second look only."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.errors import NoRoomError

if TYPE_CHECKING:
    from vgpurun.admission.tickets import Ticket

_POLL_S = 0.5
_SECOND_LOOK_S = 0.2  # anything just ending or being swept at the first look is gone at the second


class Line:
    """A launch's time in the queue: `wait_s` is how long it waits for one of these GPUs, 0 for not at all.

    `asked`: what others see that it waits for. `folder`: None is that of all launches.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        wait_s: float,
        say: Callable[[str], None],
        folder: Path | None = None,
        asked: str = "",
    ) -> None:
        self._uuids = uuids
        self._wait_s = wait_s
        self._say = say
        self._folder = folder
        self._asked = asked
        self._ticket: Ticket | None = None
        self._deadline = time.monotonic() + wait_s
        self._refusal: NoRoomError | None = None
        self._has_looked_twice = False
        self._said = ""

    def is_behind(self) -> bool:
        """Whether others have waited for longer. A launch that does not wait goes ahead if there is room."""
        return self._wait_s > 0 and self._before() > 0

    def join(self) -> None:
        """Take a place in the queue, if this launch waits and has none yet. Raises StateError."""
        if self._wait_s > 0 and self._ticket is None:
            from vgpurun.admission.tickets import Ticket

            self._ticket = Ticket.take(self._uuids, self._folder, self._asked)

    def wait(self, refusal: NoRoomError | None) -> None:
        """Return when it is time to look for room again; raises NoRoomError when there is no time left."""
        self._refusal = refusal or self._refusal
        if self._ticket is not None and refusal is not None:
            self._ticket.wait_for(self._uuids if refusal.gpus is None else refusal.gpus)
        if self._ticket is None:
            if self._has_looked_twice and self._refusal is not None:
                raise self._refusal
            self._has_looked_twice = True
            time.sleep(_SECOND_LOOK_S)
            return
        while True:
            before = self._before()
            self._announce(before)
            if time.monotonic() >= self._deadline:
                raise self._too_late(before)
            time.sleep(_POLL_S)
            self._ticket.touch()
            if before == 0:
                return

    def close(self) -> None:
        """Leave the queue."""
        if self._ticket is not None:
            self._ticket.close()

    def _before(self) -> int:
        from vgpurun.admission.tickets import ahead  # few launches wait

        return ahead(self._uuids, self._ticket, self._folder)

    def _announce(self, before: int) -> None:
        reason = f": {self._refusal.reason}" if self._refusal and before == 0 else ""
        text = f"waiting in place {before + 1} of the queue{reason}; Ctrl-C leaves it"
        if text != self._said:
            self._say(text)
            self._said = text

    def _too_late(self, before: int) -> NoRoomError:
        waited = f"waited {self._wait_s:g} s in vain"
        if self._refusal is None or before > 0:
            return NoRoomError(f"{waited}: place {before + 1} of the queue", "wait longer, or ask for less")
        return NoRoomError(f"{waited}: {self._refusal.reason}", self._refusal.way_out, self._refusal.details)
