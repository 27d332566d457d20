"""A user's grant: the most that the quotas of /etc/vgpurun/config.yaml let a user have of the GPUs.

A user who may talk to the Docker Engine is root: quotas keep honest users within what was agreed. In every sum a launch
without a memory limit counts as the whole GPU, and one without a compute limit as 100 %.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.admission.capacity_table import capacity_table
from vgpurun.config import values as config
from vgpurun.config.schema import Maxima
from vgpurun.errors import NoRoomError, QuotaError
from vgpurun.host.gpu_names import match_gpu
from vgpurun.host.gpus import Gpu
from vgpurun.limits.quota import Quota, show_size
from vgpurun.util.users import current_user

WAYS_OUT_OF_OWN = "end one, ask for less, or queue with --wait"
_NOTHING: Mapping[str, Quota] = MappingProxyType({})


@dataclass(frozen=True)
class _Sum:
    """A maximum, what the launch needs of it and what the user's others have of it, in bytes, percent or pieces.

    `before`: what of it the launch has already, where it is a change.
    """

    key: str
    where: str
    most: int
    needed: int
    held: int
    before: int = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether this is more than the user may have now; what does not grow is not asked for."""
        return self.needed > self.before and self.held + self.needed > self.most

    def show(self, amount: int) -> str:
        """Return an amount for a message."""
        if self.key.startswith("memory"):
            return show_size(amount)
        return f"{amount} %" if self.key.startswith("sm") else str(amount)


@dataclass(frozen=True)
class Grant:
    """The maxima of one user, held against what the user has already."""

    user: str
    maxima: Maxima = field(default_factory=Maxima)

    def most(self, gpus: Sequence[Gpu], count: int) -> dict[str, Quota]:
        """Return by UUID what the user may ever have on each GPU, in a launch on so many; None is no maximum."""
        maxima = self.maxima
        all_bytes = sum(gpu.memory_bytes for gpu in gpus)
        memory = None if maxima.memory is None else maxima.memory.bytes_on(all_bytes) // count
        sm = None if maxima.sm is None else maxima.sm // count
        return {
            gpu.uuid: Quota(
                _least(
                    memory, None if maxima.memory_per_gpu is None else maxima.memory_per_gpu.bytes_on(gpu.memory_bytes)
                ),
                _least(sm, maxima.sm_per_gpu),
            )
            for gpu in gpus
        }

    def check(
        self, capacity: GpuCapacity, need: Quota, is_overcommit: bool = False, before: Quota | None = None
    ) -> None:
        """Raise QuotaError for what the user may never have on this GPU."""
        if is_overcommit and not self.may_overcommit:
            raise QuotaError(f"{self._whose('overcommit')} may not use --overcommit; leave it out")
        if not self.allows(capacity.gpu):
            raise QuotaError(f"{self._whose('gpus')} may not use GPU {capacity.gpu.number}; {self._allowed}")
        self._check_possible(self._sums_on(capacity, need, before))

    def allows(self, gpu: Gpu) -> bool:
        """Ask whether the user may use a GPU at all."""
        return self.maxima.gpus is None or any(match_gpu(name, [gpu]) for name in self.maxima.gpus)

    def check_count(self, gpus: Sequence[Gpu], wanted: int) -> None:
        """Raise QuotaError where the user may use fewer of these GPUs than a launch wants."""
        if (usable := sum(map(self.allows, gpus))) < wanted:
            raise QuotaError(f"{self._whose('gpus')} may use {usable} of the GPUs, not {wanted}; {self._allowed}")

    @property
    def _allowed(self) -> str:
        return f"allowed: {', '.join(self.maxima.gpus or ()) or 'none'}"

    def refusal(self, capacity: GpuCapacity, need: Quota, before: Quota | None = None) -> str | None:
        """Return why the user may not have this on the GPU now, or None."""
        return next((self._exceeded(each) for each in self._sums_on(capacity, need, before) if each.is_exceeded), None)

    def left_on(self, capacity: GpuCapacity, capacities: Sequence[GpuCapacity]) -> Quota | None:
        """Return what the user may have on this GPU besides what the user has on all; None in it is no maximum.

        None alone: no launch there is for the user now.
        """
        if not self.allows(capacity.gpu):
            return None
        left: dict[str, int] = {}
        for each in (*self._sums_on(capacity, Quota(), None), *self._sums_in_all(capacities, [], _NOTHING)):
            kind = each.key.removesuffix("_per_gpu")
            left[kind] = min(left.get(kind, each.most), each.most - each.held)
        return None if min(left.values(), default=1) <= 0 else Quota(left.get("memory"), left.get("sm"))

    @property
    def may_overcommit(self) -> bool:
        """Whether --overcommit is for the user."""
        return self.maxima.overcommit is not False

    def check_sum(
        self,
        capacities: Sequence[GpuCapacity],
        chosen: Sequence[tuple[GpuCapacity, Quota]],
        before: Mapping[str, Quota] = _NOTHING,
    ) -> None:
        """Hold the launch against the sums over all GPUs.

        Raises QuotaError for what the user may never have, and NoRoomError for what the user may not have now.
        """
        sums = list(self._sums_in_all(capacities, chosen, before))
        self._check_possible(sums)
        for each in sums:
            if each.is_exceeded:
                raise NoRoomError(self._exceeded(each), WAYS_OUT_OF_OWN, capacity_table(capacities), gpus=())

    def _sums_on(self, capacity: GpuCapacity, need: Quota, before: Quota | None) -> Iterator[_Sum]:
        gpu, where = capacity.gpu, f" on GPU {capacity.gpu.number}"
        mine = [quota for _, quota in self._mine(capacity)]
        if self.maxima.memory_per_gpu is not None:
            most = self.maxima.memory_per_gpu.bytes_on(gpu.memory_bytes)
            held = sum(_memory_bytes(gpu, quota) for quota in mine)
            had = _memory_bytes(gpu, before) if before else 0
            yield _Sum("memory_per_gpu", where, most, _memory_bytes(gpu, need), held, had)
        if self.maxima.sm_per_gpu is not None:
            held = sum(_sm_percent(quota) for quota in mine)
            had = _sm_percent(before) if before else 0
            yield _Sum("sm_per_gpu", where, self.maxima.sm_per_gpu, _sm_percent(need), held, had)

    def _sums_in_all(
        self,
        capacities: Sequence[GpuCapacity],
        chosen: Sequence[tuple[GpuCapacity, Quota]],
        before: Mapping[str, Quota],
    ) -> Iterator[_Sum]:
        had = [(capacity.gpu, before[capacity.gpu.uuid]) for capacity, _ in chosen if capacity.gpu.uuid in before]
        mine = [(capacity.gpu, holder, quota) for capacity in capacities for holder, quota in self._mine(capacity)]
        if self.maxima.memory is not None:
            most = self.maxima.memory.bytes_on(sum(capacity.gpu.memory_bytes for capacity in capacities))
            needed = sum(_memory_bytes(capacity.gpu, need) for capacity, need in chosen)
            held = sum(_memory_bytes(gpu, quota) for gpu, _, quota in mine)
            yield _Sum("memory", "", most, needed, held, sum(_memory_bytes(gpu, quota) for gpu, quota in had))
        if self.maxima.sm is not None:
            needed = sum(_sm_percent(need) for _, need in chosen)
            held = sum(_sm_percent(quota) for _, _, quota in mine)
            yield _Sum("sm", "", self.maxima.sm, needed, held, sum(_sm_percent(quota) for _, quota in had))
        if self.maxima.containers is not None:
            yield _Sum(
                "containers", "", self.maxima.containers, 1, len({holder for _, holder, _ in mine}), 1 if had else 0
            )

    def _mine(self, capacity: GpuCapacity) -> Iterator[tuple[str, Quota]]:
        for share in capacity.shares:
            if share.holder.user == self.user:
                yield share.holder.id, share.quota

    def _check_possible(self, sums: Iterator[_Sum] | Sequence[_Sum]) -> None:
        for each in sums:
            if each.needed > max(each.most, each.before):
                if each.key == "containers":
                    raise QuotaError(f"{self._whose(each.key)} may start no containers")
                raise QuotaError(
                    f"this launch counts as {each.show(each.needed)}{each.where}, more than the {each.show(each.most)} "
                    f"for {self._whose(each.key)}; give or lower {'--sm' if each.key.startswith('sm') else '--mem'}"
                )

    def _exceeded(self, each: _Sum) -> str:
        return (
            f"{each.show(each.held)} of the {each.show(each.most)} for {self._whose(each.key)} are in use{each.where}, "
            f"and this launch counts as {each.show(each.needed)}"
        )

    def _whose(self, key: str) -> str:
        return f"user {self.user} ({key}, {self.maxima.origins.get(key, '')})"


def own_grant() -> Grant:
    """Return what the administrator grants the user who launches. Raises ConfigError."""
    quotas = config.own_quotas(config.whole())
    values = {name: setting.value for name, setting in quotas.items()}
    return Grant(current_user(), Maxima(**values, origins={name: each.origin for name, each in quotas.items()}))


def _least(*maxima: int | None) -> int | None:
    return min((each for each in maxima if each is not None), default=None)


def _memory_bytes(gpu: Gpu, quota: Quota) -> int:
    return gpu.memory_bytes if quota.memory_bytes is None else quota.memory_bytes


def _sm_percent(quota: Quota) -> int:
    return 100 if quota.sm_percent is None else quota.sm_percent
