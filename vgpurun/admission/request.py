"""A launch's request: which GPUs may be its own, and what it needs on each of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.errors import GpuError, LimitError, OptionError
from vgpurun.host import gpus as devices
from vgpurun.host.gpu_names import parse_gpus
from vgpurun.host.gpus import Gpu
from vgpurun.limits import quota
from vgpurun.limits.model import Limits
from vgpurun.limits.quota import MemoryLimit, PerDevice, Quota, T, by_device, exact_memory, show_size
from vgpurun.util.choices import PLACE_POLICIES


@dataclass(frozen=True)
class Request:
    """The user's words. `environment` is what the program will have, for the limits in it.

    A process of this host (`is_local`) sees the indexes of the host; a container counts its own GPUs from 0. `before`
    has, by UUID, the limits that there are already; those that do not grow stay, whatever room there is.
    `defaults` are the options (`mem`, `sm`, `overcommit`) that the user did not write: the configuration did.
    """

    limits: Limits
    gpus: str | None = None
    policy: str = PLACE_POLICIES[0]
    is_overcommit: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    is_local: bool = False
    before: Mapping[str, Quota] = field(default_factory=dict)
    defaults: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        """The options that ask for room, for people."""
        limits = (("--mem", self.limits.memory), ("--sm", self.limits.sm))
        asked = [(option, each.text) for option, each in limits if each] + [("--gpus", self.gpus)] * bool(self.gpus)
        return " ".join(f"{option} {text}" for option, text in asked)


@dataclass(frozen=True)
class Candidates:
    """GPUs that the launch must have, and how many of which others."""

    fixed: tuple[Gpu, ...]
    others: tuple[Gpu, ...] = ()
    others_count: int = 0

    @property
    def all(self) -> tuple[Gpu, ...]:
        """Every GPU that may be chosen."""
        return (*self.fixed, *self.others)

    @property
    def total(self) -> int:
        """How many GPUs the launch gets."""
        return len(self.fixed) + self.others_count


def candidates(request: Request, gpus: Sequence[Gpu]) -> Candidates:
    """Return which GPUs may be chosen: without --gpus one, or those that --mem and --sm name.

    Raises GpuError, OptionError, and LimitError for limits of GPUs that are not there.
    """
    wanted = parse_gpus(request.gpus, gpus) if request.gpus is not None else 1
    if not isinstance(wanted, int):
        return Candidates(tuple(wanted))
    usable = devices.usable(gpus)
    named = _named(request.limits.memory, "--mem", usable) | _named(request.limits.sm, "--sm", usable)
    if request.gpus is None and named:
        return Candidates(tuple(gpu for gpu in usable if gpu in named))
    if len(named) > wanted:
        raise OptionError(f"--gpus {wanted}, but --mem and --sm name {len(named)} GPUs; leave out --gpus")
    if len(usable) < wanted:
        raise GpuError(
            "too few GPUs: some are in MIG mode without an instance; make some (nvidia-smi mig), or choose with --gpus"
        )
    others = tuple(gpu for gpu in usable if gpu not in named)
    return Candidates(tuple(gpu for gpu in usable if gpu in named), others, wanted - len(named))


def _named(given: PerDevice[T] | None, option: str, gpus: Sequence[Gpu]) -> set[Gpu]:
    values = quota.values_on(given, gpus, option)
    return {gpu for gpu, value in zip(gpus, values, strict=True) if value is not None and given and given.by_device}


class Needs:
    """The quotas that a request comes to on each of its candidates, given the room there.

    `most` is by UUID what the user may ever have there: defaults are lowered to it, and never what was asked for.
    """

    def __init__(self, request: Request, wanted: Candidates, most: Mapping[str, Quota] = MappingProxyType({})) -> None:
        self._request = request
        self._total = wanted.total
        uuids = [gpu.uuid for gpu in wanted.all]
        memory = quota.values_on(request.limits.memory, wanted.all, "--mem")
        sm = quota.values_on(request.limits.sm, wanted.all, "--sm")
        self._memory = dict(zip(uuids, memory, strict=True))
        self._sm = dict(zip(uuids, sm, strict=True))
        self._most = {name: most if name in request.defaults else {} for name in ("mem", "sm")}

    def on(self, capacity: GpuCapacity) -> Quota:
        """Return the quota on a GPU, the larger one where it depends on the GPU's place among the chosen.

        Raises LimitError for one that the GPU cannot have.
        """
        indexes = [capacity.gpu.index] if self._request.is_local else range(self._total)
        memory, sm = _everywhere(self._memory_on(capacity)), _everywhere(self._sm_on(capacity))
        found = [quota.resolve([capacity.gpu], memory, sm, self._request.environment, [index])[0] for index in indexes]
        sizes = [each.memory_bytes for each in found]
        reserved = [each.reserved_bytes for each in found]
        is_timed = not self._request.limits.together
        percents = [each.sm_percent for each in found if each.sm_percent is not None and is_timed]
        most_bytes = None if None in sizes else max(filter(None, sizes))
        if most_bytes is None and self._request.limits.swap:
            raise LimitError("--swap takes turns with a memory limit; give one, such as --mem 90%")
        need = Quota(most_bytes, max(percents, default=None), takes_turns=self._request.limits.swap)
        return need if None in reserved else need.guaranteed(max(filter(None, reserved)))

    def limits_on(self, capacities: Sequence[GpuCapacity]) -> Limits:
        """Return --mem and --sm for these GPUs, with what `max` and lowered defaults are."""
        memory = {capacity.gpu.uuid: self._memory_on(capacity) for capacity in capacities}
        sm = {capacity.gpu.uuid: self._sm_on(capacity) for capacity in capacities}
        limits = self._request.limits
        if any(each != self._memory[uuid] for uuid, each in memory.items()):
            limits = replace(limits, memory=by_device((uuid, each, each.text) for uuid, each in memory.items() if each))
        if any(each != self._sm[uuid] for uuid, each in sm.items()):
            limits = replace(limits, sm=by_device((uuid, each, str(each)) for uuid, each in sm.items() if each))
        return limits

    def lowered_on(self, capacity: GpuCapacity) -> Iterator[tuple[str, str]]:
        """Yield the options that the user may not have as they are by default, and what they are instead."""
        memory, sm = self._memory_on(capacity), self._sm_on(capacity)
        if memory and memory.most and memory != self._memory[capacity.gpu.uuid] and not self.takes_rest_of(capacity):
            yield "mem", show_size(memory.most.bytes_on(capacity.gpu.memory_bytes))
        if sm != self._sm[capacity.gpu.uuid]:
            yield "sm", f"{sm} %"

    def takes_rest_of(self, capacity: GpuCapacity) -> bool:
        """Whether the memory limit is all that is free there."""
        written = self._memory[capacity.gpu.uuid]
        return written is not None and written.most is None

    def _memory_on(self, capacity: GpuCapacity) -> MemoryLimit | None:
        written = self._memory[capacity.gpu.uuid]
        if self.takes_rest_of(capacity):
            written = exact_memory(capacity.free_for(self._request.limits.swap))
        most = self._most["mem"].get(capacity.gpu.uuid)
        if written is None or most is None or not most.memory_bytes:
            return written
        (asked,) = quota.resolve([capacity.gpu], _everywhere(written), None, {}, [0])
        if not asked.has_more_memory_than(most):
            return written
        guaranteed_bytes = min(asked.reserved_bytes or most.memory_bytes, most.memory_bytes)
        return exact_memory(most.memory_bytes, None if guaranteed_bytes == most.memory_bytes else guaranteed_bytes)

    def _sm_on(self, capacity: GpuCapacity) -> int | None:
        percent, most = self._sm[capacity.gpu.uuid], self._most["sm"].get(capacity.gpu.uuid)
        return percent if percent is None or most is None or not most.sm_percent else min(percent, most.sm_percent)


def _everywhere(value: T | None) -> PerDevice[T] | None:
    return None if value is None else PerDevice(str(value), everywhere=value)
