"""Which GPU the container has that kubelet is admitting at this moment.

Kubelet asks for the resources of a container one after the other, in any order, and does not say whose they are. But it
writes its record as soon as a container has all of them, and only then goes on to the next. So what was given last and
is not in the record yet belongs to the container that is being asked for now.

The container's next request is not known. But pods come in series and are made again when they are refused: so a
container that asks for as much of one resource as an earlier one is taken to ask for as much of the other, too.

All this steers where units come from, and lets an impossible pod fail early. Nothing relies on it: before a
container starts, the record says exactly what it has.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from vgpurun.errors import VgpurunError
from vgpurun.kubernetes.checkpoint import Holding
from vgpurun.kubernetes.device_plugin.units import Kind, Resource

_ADMISSION_TAKES_S = 30  # at most, from the first resource of a container to the last


class _Given(NamedTuple):
    resource: str
    kind: Kind
    units: frozenset[str]
    uuid: str
    before: frozenset[tuple[str, str]]  # pods or init containers that had these units in the record then, and are gone
    at_s: float


class Admission:
    """Remembers what was given last. `holdings` reads kubelet's record."""

    def __init__(self, holdings: Callable[[], Sequence[Holding]], clock: Callable[[], float] = time.monotonic) -> None:
        self._holdings = holdings
        self._clock = clock
        self._last: _Given | None = None
        self._other_count: dict[tuple[Kind, int], int] = {}

    def given(self, resource: Resource, units: Sequence[str], uuid: str) -> None:
        """Note that units of one GPU were given."""
        ids = frozenset(units)
        if resource.kind is Kind.SLICE:
            self._last = None  # complete by itself
        else:
            owners = self._owners(resource.name, ids)
            self._last = _Given(resource.name, resource.kind, ids, uuid, owners, self._clock())

    @contextmanager
    def step(self) -> Iterator[None]:
        """Enclose the answer to one question of kubelet's: a refusal ends the admission of the container."""
        try:
            yield
        except VgpurunError:
            self._last = None
            raise

    def gpu_for(self, resource: Resource) -> str | None:
        """Return the GPU on which the container that asks for `resource` now has something already, if any."""
        last = self._last
        if last is None or last.kind is resource.kind or resource.kind is Kind.SLICE:
            return None
        if self._clock() - last.at_s > _ADMISSION_TAKES_S or self._owners(last.resource, last.units) - last.before:
            return None
        return last.uuid

    def asked(self, resource: Resource, count: int) -> None:
        """Note how much of `resource` the container asks for that has the other one already."""
        if (last := self._last) and self.gpu_for(resource):
            self._other_count[last.kind, len(last.units)] = count
            self._other_count[resource.kind, count] = len(last.units)

    def expected(self, resource: Resource, count: int) -> int:
        """Return how much of the other resource came with `count` of this one; 0 where that is not known."""
        return self._other_count.get((resource.kind, count), 0)

    def _owners(self, resource: str, units: frozenset[str]) -> frozenset[tuple[str, str]]:
        return frozenset(
            (each.pod_uid, each.container) for each in self._holdings() if each.units.get(resource) == units
        )
