"""Carries out what the agent has decided: targets off their GPUs, and back. Each is said when it is done."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu
from vgpurun.limits.update import is_being_changed
from vgpurun.suspend import requests, resuming, transition
from vgpurun.suspend.agent.troubles import Troubles
from vgpurun.suspend.processes import find
from vgpurun.suspend.record import Record
from vgpurun.suspend.requests import Request
from vgpurun.suspend.targets import Target
from vgpurun.suspend.transition import Wishes

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine


class Transitions:
    """The transitions of targets on these GPUs, by the driver's library `libcuda`."""

    def __init__(self, gpus: Sequence[Gpu], libcuda: str, say: Callable[[str], None], troubles: Troubles) -> None:
        self._gpus = gpus
        self._libcuda = libcuda
        self._say = say
        self._troubles = troubles

    def suspend_idle(self, target: Target, why: str) -> bool:
        """Return whether it has given something back: one without memory on a GPU has nothing to give.

        Raises nothing: a trouble is taken note of.
        """
        is_away = False

        def act(target: Target) -> None:
            nonlocal is_away
            if not is_being_changed(target) and find(target.limits_folder, self._gpus):
                with Checkpoints(self._libcuda) as driver:
                    transition.suspend(target, self._gpus, driver, Wishes(by=why, gives_way=True))
                self._say(f"suspend {target.name}: {why}")
                is_away = True

        self._troubles.attempt(target, act)
        return is_away

    def wake(self, target: Target, found: Record, engine: "Engine | None") -> None:
        """Bring back a target whose program asks for its GPU. Raises as bring_back() does, NoRoomError for one."""
        with Checkpoints(self._libcuda) as driver:
            resuming.bring_back(target, self._gpus, driver, engine)
        self._say(f"resume {target.name}: its program asks for its GPU, after {time.time() - found.since_s:.0f} s")

    def finish(self, target: Target) -> None:
        """Finish what was interrupted. Raises SuspendError, StateError and OSError."""
        with Checkpoints(self._libcuda) as driver:
            if transition.finish(target, self._gpus, driver) is None:
                self._say(f"finish {target.name}: what was interrupted is undone; its programs go on")

    def carry_out(self, target: Target, request: Request, engine: "Engine | None") -> None:
        """Do what the user of a target asks for. Raises VgpurunError and OSError."""
        with Checkpoints(self._libcuda) as driver:
            if request.verb == requests.RESUME:
                resuming.bring_back(target, self._gpus, driver, engine)
                return
            wishes = Wishes("vgpurun suspend", request.is_held, lock_timeout_ms=request.lock_timeout_ms)
            transition.suspend(target, self._gpus, driver, wishes)
