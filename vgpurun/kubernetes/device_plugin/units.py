"""A node's offer: resources, each of units of its GPUs. A unit's id says which GPU it is of.

Kubelet keeps the account: it gives no id twice. So the units on offer are at most what a GPU has, and nothing here has
to be counted again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from vgpurun.errors import KubernetesError
from vgpurun.host.gpus import Gpu, usable
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources, Shape
from vgpurun.limits.quota import Quota, show_size

_ID = re.compile(r"(?P<uuid>.+)_(?P<number>0|[1-9][0-9]{0,5})", re.ASCII)


def number_of(unit: str) -> int:
    """Return which of its GPU's units one is, from 0, by its id."""
    return int(unit.rpartition("_")[2])


class Kind(Enum):
    """The kind of a resource's units."""

    MEMORY = "memory"
    COMPUTE = "compute"
    SLICE = "slice"


class Resource(NamedTuple):
    """A resource of kubelet's. `counts` are the units of each GPU, by UUID.

    A unit is `quota` of its GPU: of memory some bytes, of compute one percent, of a slice both.
    """

    name: str
    kind: Kind
    quota: Quota
    counts: Mapping[str, int]

    def ids(self) -> Iterator[tuple[str, str]]:
        """Yield the id and the GPU's UUID of every unit."""
        for uuid, count in self.counts.items():
            for number in range(count):
                yield f"{uuid}_{number}", uuid

    def by_gpu(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return units by the UUIDs of their GPUs. Raises KubernetesError for an id that is none, or is there twice."""
        found: dict[str, list[str]] = {}
        for unit in ids:
            match = _ID.fullmatch(unit)
            if match is None or int(match["number"]) >= self.counts.get(match["uuid"], 0):
                raise KubernetesError(f"{self.name} has no unit '{unit[:80]}'")
            found.setdefault(match["uuid"], []).append(unit)
        if len(set(ids)) < len(ids):
            raise KubernetesError(f"a unit of {self.name} is named twice")
        return found

    def quotas_of(self, ids: Sequence[str]) -> dict[str, Quota]:
        """Return what units come to on each GPU, by UUID. Raises KubernetesError."""
        found = self.by_gpu(ids)
        for uuid, units in found.items():
            if self.kind is Kind.SLICE and len(units) > 1:
                raise KubernetesError(f"{len(units)} units of {self.name} on GPU {uuid}; a container has one of a GPU")
        return {
            uuid: Quota(_times(self.quota.memory_bytes, len(units)), _times(self.quota.sm_percent, len(units)))
            for uuid, units in found.items()
        }


def _times(amount: int | None, count: int) -> int | None:
    return None if amount is None else amount * count


def resources_of(offered: OfferedResources, gpus: Sequence[Gpu]) -> list[Resource]:
    """Return all resources of a node. Shares of slices are not offered in units of memory and compute.

    GPUs in MIG mode are left out. Raises KubernetesError for slices that a GPU has no room for.
    """
    memory, compute = {}, {}
    for gpu in usable(gpus):
        taken = [shape for shape in offered.shapes if _is_on(shape, gpu)]
        left_bytes = gpu.memory_bytes - sum(shape.memory_bytes * shape.count for shape in taken)
        left_percent = 100 - sum(shape.sm_percent * shape.count for shape in taken)
        if left_bytes < 0 or left_percent < 0:
            raise KubernetesError(
                f"the slices on GPU {gpu.number} ({show_size(gpu.memory_bytes)}) are more than it has: "
                + ", ".join(f"{each.count} x {each.name}" for each in taken)
            )
        memory[gpu.uuid] = left_bytes // offered.memory_unit_bytes
        compute[gpu.uuid] = left_percent
    slices = [
        Resource(
            offered.slice_name(shape),
            Kind.SLICE,
            Quota(shape.memory_bytes, shape.sm_percent),
            {gpu.uuid: shape.count for gpu in usable(gpus) if _is_on(shape, gpu)},
        )
        for shape in offered.shapes
    ]
    return [
        Resource(offered.memory_name, Kind.MEMORY, Quota(memory_bytes=offered.memory_unit_bytes), memory),
        Resource(offered.compute_name, Kind.COMPUTE, Quota(sm_percent=1), compute),
        *slices,
    ]


def _is_on(shape: Shape, gpu: Gpu) -> bool:
    return shape.gpus is None or gpu.number in shape.gpus or gpu.uuid in shape.gpus
