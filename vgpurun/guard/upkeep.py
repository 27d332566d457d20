"""Keeps the guard's list of stopped containers true: others thaw, end and start containers too."""

from collections.abc import Callable
from contextlib import suppress

from vgpurun.errors import CgroupError
from vgpurun.guard.hands import let_dying_go
from vgpurun.guard.state import State
from vgpurun.host.freezer import run_of
from vgpurun.inventory.guarded import FREEZE, HOLD, is_launch


def let_held_run(state: State) -> None:
    """Thaw what a guard before this one held: it may have ended at any point of a period. It is held on if need be."""
    for stopped in state.stopped.values():
        if stopped.verb == HOLD and run_of(stopped.cgroup) == stopped.run:
            with suppress(CgroupError):
                stopped.cgroup.thaw()


def follow(state: State, say: Callable[[str], None]) -> None:
    """Forget what has ended, and what somebody has thawed, which holds until the container is within its limits again.

    Raises OSError.
    """
    for container, stopped in list(state.stopped.items()):
        cgroup = stopped.cgroup
        try:
            if run_of(cgroup) != stopped.run or (not is_launch(container) and cgroup.remove_if_empty()):
                state.forget(container)  # it has ended, or was started again
            elif stopped.verb == FREEZE and not cgroup.is_frozen():
                shown = f"process {container}" if is_launch(container) else f"container {container[:12]}"
                say(f"{shown} was thawed by somebody else")
                state.forget(container)
            else:
                let_dying_go(cgroup)
        except CgroupError:
            continue  # it ended just now
