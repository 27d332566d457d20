"""Which units kubelet should take: those of memory and compute all of one GPU, slices each of another."""

from collections.abc import Collection, Mapping, Sequence

from vgpurun.errors import KubernetesError
from vgpurun.kubernetes.device_plugin.units import Kind, Resource, number_of


def choose(
    resource: Resource,
    available: Sequence[str],
    wanted: Sequence[str],
    count: int,
    gpu: str | None = None,
    left: Mapping[str, float] | None = None,
    fitting: Collection[str] = (),
) -> list[str]:
    """Return `count` of the available units, those that are `wanted` among them.

    `gpu` is the UUID of the GPU on which the container has something already. `left` is how much of the other resource
    is left on each GPU, from 0 to 1, which is the most that a GPU has, for a container that may ask for it next; on
    those that are `fitting` there is as much of it as the container is expected to ask for. Raises KubernetesError
    where no choice is good.
    """
    free = resource.by_gpu(list(dict.fromkeys([*available, *wanted])))
    fixed = resource.by_gpu(wanted)
    if not 0 < count <= sum(map(len, free.values())) or len(wanted) > count:
        raise KubernetesError(f"{count} units of {resource.name} cannot be chosen from {len(available)}")
    if resource.kind is Kind.SLICE:
        return _spread(resource, free, fixed, count)
    if len(fixed) > 1:
        raise KubernetesError(f"the units of {resource.name} that this pod has already are of several GPUs")
    must = next(iter(fixed), gpu)
    candidates = [uuid for uuid, units in free.items() if len(units) >= count and must in (None, uuid)]
    if not candidates:
        raise KubernetesError(_refusal(resource, free, count, must))
    order = {uuid: place for place, uuid in enumerate(resource.counts)}
    most = max(resource.counts.values())  # slices leave less of some GPUs

    def room(uuid: str) -> tuple[bool, float, int]:
        own = len(free[uuid]) / most
        return uuid in fitting, min(own, (left or {}).get(uuid, 1.0)), -order[uuid]

    best = max(candidates, key=room)
    return (list(wanted) + [unit for unit in sorted(free[best], key=number_of) if unit not in wanted])[:count]


def _spread(resource: Resource, free: Mapping[str, list[str]], fixed: Mapping[str, list[str]], count: int) -> list[str]:
    if any(len(units) > 1 for units in fixed.values()) or len(free) < count:
        raise KubernetesError(f"{count} of {resource.name} need {count} GPUs, and {len(free)} have one left")
    others = sorted((uuid for uuid in free if uuid not in fixed), key=lambda uuid: -len(free[uuid]))
    chosen = [units[0] for units in fixed.values()]
    return chosen + [min(free[uuid], key=number_of) for uuid in others[: count - len(chosen)]]


def _refusal(resource: Resource, free: Mapping[str, list[str]], count: int, must: str | None) -> str:
    if must is None:
        most = max(map(len, free.values()), default=0)
        return f"{count} of {resource.name} are on no single GPU; the most that one has left is {most}"
    other = Kind.COMPUTE if resource.kind is Kind.MEMORY else Kind.MEMORY
    return (
        f"{count} of {resource.name} are not left on GPU {must}, where this container has its {other.value} "
        f"({len(free.get(must, []))} are left there)"
    )
