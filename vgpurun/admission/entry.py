"""Lets a launch in when there is room for it: looks at the GPUs and keeps others from doing so until it is done.

What a launch takes is taken when its container, or the state folder of a local process, exists: from then on it is
among the holders that the next one sees.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vgpurun.admission.grants import Grant
from vgpurun.admission.holders import all_holders
from vgpurun.admission.lock import admission_lock
from vgpurun.admission.placement import Placement, place
from vgpurun.admission.request import Request, candidates
from vgpurun.admission.rooms import Room, rooms
from vgpurun.admission.waiting import Line
from vgpurun.errors import NoRoomError
from vgpurun.host import gpus as devices
from vgpurun.host.gpus import Gpu

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine


@dataclass
class Admission:
    """A launch that asks to be let in. `wait_s`: how long it waits for room, 0 for not at all.

    `in_place_of`: the id of a container that this is about to change, or has become; what it holds does not count.
    """

    request: Request
    gpus: Sequence[Gpu]
    grant: Grant
    engine: "Engine | None"
    wait_s: float
    say: Callable[[str], None]
    warn: Callable[[str], None]
    in_place_of: str = ""
    _placement: Placement | None = field(default=None, init=False)
    _is_sure: Callable[[], bool] = field(default=lambda: True, init=False)

    def check(self) -> None:
        """Raise what place() raises even where nobody else is."""
        place(self.request, [Room(gpu, (), 0) for gpu in self.gpus], self.grant)

    def look(self) -> Placement:
        """Return where the launch would go now.

        Raises NoRoomError, EngineError, and what place() raises for a launch that nothing will ever make room for.
        """
        uses = devices.read_use(self.gpus)
        holders = [holder for holder in all_holders(self.engine) if holder.id != self.in_place_of]
        return place(self.request, rooms(self.gpus, uses, holders), self.grant)

    @contextmanager
    def granted(self) -> Iterator[Placement]:
        """Wait for room, then yield the placement, with the lock held: what the launch takes must exist at the end.

        Raises NoRoomError when there is none in time, and what look() raises.
        """
        uuids = [gpu.uuid for gpu in candidates(self.request, self.gpus).all]
        with closing(Line(uuids, self.wait_s, self.say)) as line:
            while True:
                refusal = None
                with admission_lock(self.warn) as self._is_sure:
                    try:
                        self._placement = None if line.is_behind() else self.look()
                    except NoRoomError as error:
                        refusal = error
                    if self._placement is not None:
                        line.close()
                        yield self._placement
                        return
                    line.join()
                line.wait(refusal)

    def confirm(self, container: str) -> None:
        """Once the container exists: if another launch may have looked at the same time, look again.

        Raises NoRoomError.
        """
        if self._placement is not None and not self._is_sure():
            chosen = "device=" + ",".join(gpu.uuid for gpu in self._placement.gpus)
            again = self.request._replace(gpus=chosen, limits=self._placement.limits)
            replace(self, request=again, in_place_of=container).look()
