"""Which GPUs a launch gets. Pure: from what is asked for and the room on each GPU.

`spread` takes the emptiest GPUs that have room, `binpack` the fullest, so that whole GPUs stay free for launches that
need one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.admission.capacity_table import capacity_table
from vgpurun.admission.grants import WAYS_OUT_OF_OWN, Grant
from vgpurun.admission.request import Needs, Request, candidates
from vgpurun.errors import LimitError, NoRoomError, QuotaError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.model import Joined, Limits, Part
from vgpurun.limits.quota import LEAST_LIMIT_BYTES, Quota

_WAYS_OUT = "ask for less, queue with --wait, or share regardless with --overcommit"
_WAYS_OUT_IN_TURN = "ask for less, or queue with --wait"
_WITHOUT_LIMIT = "a launch without --mem"


@dataclass(frozen=True)
class Placement:
    """The GPUs that a launch gets, in NVML's order, and its limits on them, `max` replaced by what it is.

    A launch that joins a slice gets its GPUs and its limits, or a part of them. `lowered`: defaults that the user may
    not have in full.
    """

    gpus: tuple[Gpu, ...]
    limits: Limits
    joined: Joined | None = None
    part: Part | None = None
    lowered: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Choice:
    """A candidate: what the launch needs there, and why it cannot have it now.

    `is_crowded`: only by --overcommit. `is_own`: what is refused is more than the user may have at the same time.
    """

    capacity: GpuCapacity
    need: Quota
    refusal: str | None
    is_crowded: bool = False
    is_own: bool = False


def place(request: Request, capacities: Sequence[GpuCapacity], grant: Grant) -> Placement:
    """Choose the GPUs. `grant` is what the administrator lets the user have.

    Raises NoRoomError for what may fit later. For what never will: GpuError, OptionError, LimitError and QuotaError.
    """
    if "overcommit" in request.defaults and not grant.may_overcommit:
        request = replace(request, is_overcommit=False)
    wanted = candidates(request, [capacity.gpu for capacity in capacities])
    needs = Needs(request, wanted, grant.most([capacity.gpu for capacity in capacities], wanted.total))
    by_uuid = {capacity.gpu.uuid: capacity for capacity in capacities}
    fixed = [_consider(request, needs, by_uuid[gpu.uuid], grant) for gpu in wanted.fixed]
    others = _considered(request, needs, [by_uuid[gpu.uuid] for gpu in wanted.others], grant, wanted.others_count)
    chosen = fixed + _best(others, request.policy)[: wanted.others_count]
    if len(chosen) < wanted.total or any(choice.refusal for choice in chosen):
        raise _no_room(request, [*fixed, *others], wanted.total, grant)
    grant.check_sum(capacities, [(choice.capacity, choice.need) for choice in chosen], request.before)
    chosen.sort(key=lambda choice: choice.capacity.gpu.place)
    chosen_capacities = [choice.capacity for choice in chosen]
    lowered = dict.fromkeys(
        f"the default --{name} is lowered to {text}, the most for user {grant.user}"
        for capacity in chosen_capacities
        for name, text in needs.lowered_on(capacity)
    )
    return Placement(
        tuple(capacity.gpu for capacity in chosen_capacities),
        needs.limits_on(chosen_capacities),
        lowered=tuple(lowered),
    )


def _consider(request: Request, needs: Needs, capacity: GpuCapacity, grant: Grant) -> _Choice:
    if needs.takes_rest_of(capacity) and capacity.free_for(request.limits.swap) < LEAST_LIMIT_BYTES:
        return _Choice(capacity, Quota(), "nothing is free")
    need = needs.on(capacity)
    before = request.before.get(capacity.gpu.uuid)
    grant.check(capacity, need, request.is_overcommit, before)
    refusal = capacity.refusal(need, before)
    is_crowded = request.is_overcommit and refusal is not None
    if own := grant.refusal(capacity, need, before):
        return _Choice(capacity, need, own, is_own=True)
    return _Choice(capacity, need, None if is_crowded else refusal, is_crowded)


def _considered(
    request: Request, needs: Needs, capacities: Sequence[GpuCapacity], grant: Grant, count: int
) -> list[_Choice]:
    """Look at GPUs, some of which may be unfit: raise only if too few of them can ever be used.

    No error names GPUs that the user may not use at all, since nobody has asked for one of them.
    """
    choices, errors = [], []
    grant.check_count([each.gpu for each in capacities], count)
    for capacity in (each for each in capacities if grant.allows(each.gpu)):
        try:
            choices.append(_consider(request, needs, capacity, grant))
        except (LimitError, QuotaError) as error:
            errors.append(error)
    if len(choices) < count:
        raise errors[0]
    return choices


def _best(choices: Sequence[_Choice], policy: str) -> list[_Choice]:
    """Return those that fit, the best first; those that only --overcommit lets in come last, the emptiest first."""

    def order(choice: _Choice) -> tuple[object, ...]:
        capacity = choice.capacity
        sign = -1 if policy == "binpack" and not choice.is_crowded else 1
        return choice.is_crowded, sign * capacity.load, sign * len(capacity.shares), capacity.gpu.place

    return sorted((choice for choice in choices if choice.refusal is None), key=order)


def _asked(request: Request, choices: Sequence[_Choice]) -> Iterator[str]:
    """Yield the options that ask for room: those of a launch, or what a change makes larger."""
    changes = [(each.need, request.before[each.capacity.gpu.uuid]) for each in choices if request.before]
    limits = request.limits
    for option, text, is_more in (
        ("--mem", limits.memory and limits.memory.text, Quota.has_more_memory_than),
        ("--sm", limits.sm and limits.sm.text, Quota.has_more_compute_than),
    ):
        if any(is_more(need, before) for need, before in changes):
            yield f"{option} {text or '100%'}"
        elif text and not changes:
            yield f"{option} {text}"


def _no_room(request: Request, choices: Sequence[_Choice], total: int, grant: Grant) -> NoRoomError:
    asked = " ".join(_asked(request, choices)) or _WITHOUT_LIMIT
    where = (
        f"GPU {choices[0].capacity.gpu.number}" if len(choices) == 1 else "any GPU" if total == 1 else f"{total} GPUs"
    )
    reasons = dict.fromkeys(choice.refusal for choice in choices if choice.refusal)
    reason = next(iter(reasons)) if len(reasons) == 1 else "see below"
    table = capacity_table([choice.capacity for choice in choices])
    full = [choice.capacity.gpu.uuid for choice in choices if choice.refusal and not choice.is_own]
    way_out = WAYS_OUT_OF_OWN if not full else _WAYS_OUT if grant.may_overcommit else _WAYS_OUT_IN_TURN
    if asked == _WITHOUT_LIMIT:
        way_out = way_out.replace("ask for less", "give --mem")
    elif full and all(choice.capacity.unlimited and choice.need.reserved_bytes is not None for choice in choices):
        way_out = way_out.replace("ask for less", "limit that one")  # beside it no limit is small enough
    return NoRoomError(f"no room for {asked} on {where}: {reason}", way_out, table, full)
