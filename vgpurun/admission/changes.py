"""Admits new limits for an existing container or slice: what grows needs room, as at a launch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vgpurun.admission.controller import Admission
from vgpurun.admission.grants import own_grant
from vgpurun.admission.request import Request
from vgpurun.admission.turns import check_turns
from vgpurun.config import values as config
from vgpurun.console.messages import say, warn
from vgpurun.errors import NoRoomError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.model import Limits
from vgpurun.limits.quota import PerDevice, Quota, T, by_device, exact_memory

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine
    from vgpurun.limits.update import Admit

_WAYS_OUT_OF_CHANGE = "ask for less, or share regardless with --overcommit"  # no change waits


def admission_of_changes(gpus: Sequence[Gpu], engine: "Engine | None", overcommit: bool | None) -> "Admit":
    """Return how `update` of containers and slices admits what grows; see admitted_change."""
    return lambda holder, wanted, before: admitted_change(holder.id, wanted, gpus, engine, overcommit, before)


@contextmanager
def admitted_change(
    holder: str,
    wanted: Sequence[tuple[Gpu, Quota]],
    gpus: Sequence[Gpu],
    engine: "Engine | None",
    overcommit: bool | None,
    before: Mapping[str, Quota] | None = None,
) -> Iterator[None]:
    """Let a container or slice, by its id, have these limits on its GPUs, which it must have at the end.

    Of what it has already, `before` by UUIDs, nothing is asked for anew.
    Raises NoRoomError, also at the end: then they are to be taken back. Raises ConfigError, and what check_turns does.
    """
    takes_turns = any(each.takes_turns for _, each in wanted)
    if takes_turns and not before:  # this starts, or comes back
        check_turns(gpus)
    memory = [
        (gpu, exact_memory(each.memory_bytes, each.guaranteed_bytes)) for gpu, each in wanted if each.memory_bytes
    ]
    sm = [(gpu, each.sm_percent) for gpu, each in wanted if each.sm_percent]
    request = Request(
        Limits(
            _by_gpu([(gpu, each, each.text) for gpu, each in memory], wanted),
            _by_gpu([(gpu, each, str(each)) for gpu, each in sm], wanted),
            swap=takes_turns,
        ),
        gpus="device=" + ",".join(gpu.uuid for gpu, _ in wanted),
        is_overcommit=bool(config.default("overcommit")) if overcommit is None else overcommit,
        before=before or {},
    )
    admission = Admission(request, gpus, own_grant(), engine, 0, say, warn, in_place_of=holder)
    try:
        with admission.granted():
            yield
            admission.confirm(holder)
    except NoRoomError as error:
        is_own_quota = error.gpus is not None and not error.gpus
        may_overcommit = admission.grant.may_overcommit
        way_out = (
            "end one, or ask for less" if is_own_quota else _WAYS_OUT_OF_CHANGE if may_overcommit else "ask for less"
        )
        raise NoRoomError(error.reason, way_out, error.details, error.gpus) from None


def _by_gpu(values: Sequence[tuple[Gpu, T, str]], wanted: Sequence[object]) -> PerDevice[T] | None:
    """Write limits as a user would, with the GPU's number only where there are several."""
    if len(wanted) == 1:
        return next((PerDevice(text, everywhere=value) for _, value, text in values), None)
    return by_device((gpu.number, value, text) for gpu, value, text in values)
