"""Brings suspended programs back when there is room for them, as a launch would find it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING

from vgpurun.admission.changes import admitted_change
from vgpurun.admission.waiting import Line
from vgpurun.console.messages import say
from vgpurun.errors import NoRoomError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import Limited
from vgpurun.suspend.record import Record
from vgpurun.suspend.transition import resume

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine


def bring_back(
    target: Limited,
    gpus: Sequence[Gpu],
    driver: Checkpoints,
    engine: "Engine | None",
    overcommit: bool | None = None,
    wait_s: float = 0.0,
) -> Record | None:
    """Give what is suspended its GPUs back; return what its suspension was, None where there was none.

    Waits for room in the queue of launches, for so long. Raises NoRoomError, SuspendError, StateError and EngineError.
    """

    def admitted(_: Limited, wanted: Sequence[tuple[Gpu, Quota]]) -> AbstractContextManager[object]:
        return admitted_change(target.id, wanted, gpus, engine, overcommit)

    limits = limits_file.read_limits(target.limits_folder / "etc" / "limits") or []
    with closing(Line([uuid for uuid, _ in limits], wait_s, say, asked=f"resume {target.name}")) as line:
        while True:
            refusal = None
            if not line.is_behind():
                try:
                    return resume(target, gpus, driver, admitted)
                except NoRoomError as error:
                    refusal = error
            line.join()
            line.wait(refusal)
