"""Brings programs back, or to other GPUs, when there is as much room as a launch would need."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, TypeVar

from vgpurun.admission.changes import admitted_change
from vgpurun.admission.waiting import Line
from vgpurun.console.messages import say
from vgpurun.errors import NoRoomError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import Limited
from vgpurun.suspend.moving import move
from vgpurun.suspend.record import Record
from vgpurun.suspend.transition import Wishes, gpus_of, resume

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

T = TypeVar("T")


def bring_back(
    target: Limited,
    gpus: Sequence[Gpu],
    driver: Checkpoints,
    engine: "Engine | None",
    overcommit: bool | None = None,
    wait_s: float = 0.0,
) -> Record | None:
    """Resume a target; return its suspension, or None where there was none.

    Waits for room in the queue of launches, for so long. Raises NoRoomError, SuspendError, StateError and EngineError.
    """

    def admitted(_: Limited, wanted: Sequence[tuple[Gpu, Quota]]) -> AbstractContextManager[object]:
        return admitted_change(target.id, wanted, gpus, engine, overcommit)

    limits = limits_file.read_limits(target.limits_folder / "etc" / "limits") or []
    uuids = [uuid for uuid, _ in limits]
    return _in_line(uuids, wait_s, f"resume {target.name}", lambda: resume(target, gpus, driver, admitted))


def move_over(
    target: Limited,
    gpus: Sequence[Gpu],
    driver: Checkpoints,
    wanted: Sequence[Gpu],
    engine: "Engine | None",
    wishes: Wishes,
    overcommit: bool | None = None,
    wait_s: float = 0.0,
) -> Record:
    """Bring a share onto these GPUs, as many as it has; return how it was meanwhile. Waits and raises as bring_back."""

    def admitted(_: Limited, needed: Sequence[tuple[Gpu, Quota]]) -> AbstractContextManager[object]:
        return admitted_change(target.id, needed, gpus, engine, overcommit)

    def go() -> Record:
        return move(target, gpus, driver, wanted, admitted, wishes)

    own = gpus_of(target, gpus)
    return _in_line([gpu.uuid for gpu in wanted if gpu not in own], wait_s, f"move {target.name}", go)


def _in_line(uuids: Sequence[str], wait_s: float, asked: str, act: Callable[[], T]) -> T:
    """Do something that needs room on these GPUs, waiting for it if necessary. Raises NoRoomError and its errors."""
    with closing(Line(uuids, wait_s, say, asked=asked)) as line:
        while True:
            refusal = None
            if not line.is_behind():
                try:
                    return act()
                except NoRoomError as error:
                    refusal = error
            line.join()
            line.wait(refusal)
