"""What a launch asks for: which GPUs may be its own, and what it needs on each of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpurun.admission.rooms import Room
from vgpurun.choices import PLACE_POLICIES
from vgpurun.errors import GpuError, OptionError
from vgpurun.host import gpus as devices
from vgpurun.host.gpus import Gpu
from vgpurun.launch.plan import Limits
from vgpurun.limits import quota
from vgpurun.limits.quota import PerDevice, Quota


class Request(NamedTuple):
    """What the user wrote. `environment` is what the program will have, for the limits in it.

    A process of this host (`is_local`) sees the indexes of the host; a container counts its own GPUs from 0. Who has
    limits already has them in `before`, by UUID, and keeps of them what does not grow, whatever room there is.
    """

    limits: Limits
    gpus: str | None = None
    policy: str = PLACE_POLICIES[0]
    is_overcommit: bool = False
    environment: Mapping[str, str] = {}
    is_local: bool = False
    before: Mapping[str, Quota] = {}


class Candidates(NamedTuple):
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

    Raises GpuError, OptionError, and LimitError for limits that cannot be read.
    """
    memory, sm = _written(request.limits)
    wanted = devices.parse_gpus(request.gpus, gpus) if request.gpus is not None else 1
    if not isinstance(wanted, int):
        return Candidates(tuple(wanted))
    usable = devices.usable(gpus)
    named = _named(memory, "--mem", usable) | _named(sm, "--sm", usable)
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


def _written(limits: Limits) -> tuple[PerDevice[str | None], PerDevice[str | None]]:
    """Read --mem and --sm down to the text for each device, every one of which must be a limit or `max`."""
    memory: PerDevice[str | None] = PerDevice()
    sm: PerDevice[str | None] = PerDevice()
    if limits.memory is not None:
        quota.parse_per_device(limits.memory, lambda text: None if is_max(text) else quota.parse_limit(text))
        memory = quota.parse_per_device(limits.memory, str)
    if limits.sm is not None:
        quota.parse_per_device(limits.sm, quota.parse_sm)
        sm = quota.parse_per_device(limits.sm, str)
    if limits.oversubscribe is not None:
        quota.parse_per_device(limits.oversubscribe, quota.parse_size)
    return memory, sm


def check_limits(limits: Limits) -> None:
    """Raise LimitError for limits that cannot be read."""
    _written(limits)


def is_max(text: str) -> bool:
    """Whether a memory limit is all that is left on the GPU."""
    return text.strip().lower() == "max"


def _named(texts: PerDevice[str | None], option: str, gpus: Sequence[Gpu]) -> set[Gpu]:
    values = quota.values_on(texts, gpus, option)
    return {gpu for gpu, value in zip(gpus, values, strict=True) if value is not None and texts.by_device}


class Needs:
    """What a request comes to on each of its candidates, given the room there."""

    def __init__(self, request: Request, wanted: Candidates) -> None:
        self._request = request
        self._total = wanted.total
        memory, sm = _written(request.limits)
        uuids = [gpu.uuid for gpu in wanted.all]
        self._memory = dict(zip(uuids, quota.values_on(memory, wanted.all, "--mem"), strict=True))
        self._sm = dict(zip(uuids, quota.values_on(sm, wanted.all, "--sm"), strict=True))

    def on(self, room: Room) -> Quota:
        """Return the quota on a GPU, the larger one where it depends on the GPU's place among the chosen.

        Raises LimitError for one that the GPU cannot have.
        """
        indexes = [room.gpu.index] if self._request.is_local else range(self._total)
        memory, sm = self._memory_text(room), self._sm[room.gpu.uuid]
        found = [quota.resolve([room.gpu], memory, sm, self._request.environment, [index])[0] for index in indexes]
        sizes = [each.memory_bytes for each in found]
        percents = [each.sm_percent for each in found if each.sm_percent is not None]
        return Quota(None if None in sizes else max(filter(None, sizes)), max(percents, default=None))

    def limits_on(self, rooms: Sequence[Room]) -> Limits:
        """Return --mem and --sm for these GPUs, with every `max` replaced by what it is."""
        if not any(is_max(text or "") for text in self._memory.values()):
            return self._request.limits
        texts = [(room.gpu.uuid, self._memory_text(room)) for room in rooms]
        memory = ",".join(f"{uuid}={text}" for uuid, text in texts if text)
        return self._request.limits._replace(memory=memory)

    def takes_rest_of(self, room: Room) -> bool:
        """Whether the memory limit is all that is left there."""
        return is_max(self._memory[room.gpu.uuid] or "")

    def _memory_text(self, room: Room) -> str | None:
        return f"{room.left_bytes}b" if self.takes_rest_of(room) else self._memory[room.gpu.uuid]
