"""Which GPU the container has that kubelet is admitting at this moment.

Kubelet asks for the resources of a container one after the other, in any order, and does not say whose they are. But it
writes its record as soon as a container has all of them, and only then goes on to the next. So what was given last and
is not in the record yet belongs to the container that is being asked for now.

This steers where units come from, and lets a pod that cannot be fail early. Nothing relies on it: before a container
starts, the record says exactly what it has.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vgpurun.kubernetes.checkpoint import Holding
from vgpurun.kubernetes.units import Kind, Resource

_ADMISSION_TAKES_S = 30  # at most, from the first resource of a container to the last


@dataclass(frozen=True)
class _Given:
    resource: str
    kind: Kind
    units: frozenset[str]
    uuid: str
    before: frozenset[tuple[str, str]]  # who had these units in the record then: pods that are gone, or init containers
    at_s: float


class Admission:
    """What was given last. `holdings` reads kubelet's record."""

    def __init__(self, holdings: Callable[[], Sequence[Holding]], clock: Callable[[], float] = time.monotonic) -> None:
        self._holdings = holdings
        self._clock = clock
        self._last: _Given | None = None

    def given(self, resource: Resource, units: Sequence[str], uuid: str) -> None:
        """Note that units of one GPU were given."""
        ids = frozenset(units)
        if resource.kind is Kind.SLICE:
            self._last = None  # complete by itself
        else:
            owners = self._owners(resource.name, ids)
            self._last = _Given(resource.name, resource.kind, ids, uuid, owners, self._clock())

    def gpu_for(self, resource: Resource) -> str | None:
        """Return the GPU on which the container that asks for `resource` now has something already, if any."""
        last = self._last
        if last is None or last.kind is resource.kind or resource.kind is Kind.SLICE:
            return None
        if self._clock() - last.at_s > _ADMISSION_TAKES_S or self._owners(last.resource, last.units) - last.before:
            return None
        return last.uuid

    def _owners(self, resource: str, units: frozenset[str]) -> frozenset[tuple[str, str]]:
        return frozenset(
            (each.pod_uid, each.container) for each in self._holdings() if each.units.get(resource) == units
        )
