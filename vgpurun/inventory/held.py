"""The memory that the programs of one holder have on the GPUs by the driver's word, which none of them can write."""

from collections.abc import Mapping, Sequence

from vgpurun.host.gpus import Gpu
from vgpurun.inventory.programs import programs
from vgpurun.inventory.reservations import Holder, local_processes
from vgpurun.slices import store
from vgpurun.slices.members import members


def held_by_each(holders: Sequence[Holder], gpus: Sequence[Gpu]) -> list[Mapping[str, int] | None]:
    """Return what each of them uses of each GPU, by UUID, or None where that is unknown. Raises nothing.

    Another user's usage file cannot be read. Then the driver tells, where it shows a program of that holder at all.
    """
    held: list[Mapping[str, int] | None] = [each.held_bytes() for each in holders]
    unread = [each for each, held_bytes in zip(holders, held, strict=True) if held_bytes is None]
    if not unread:
        return held
    pids = {int(each.id): each.id for each in unread if each.kind == "process" and each.id.isdecimal()}
    found = programs(gpus, {each.id for each in unread if each.kind == "container"}, pids)
    by_holder: dict[str, dict[str, int]] = {}
    for uuid, by_owner in found.items():
        for owner, listed in by_owner.items():
            by_holder.setdefault(owner, {})[uuid] = sum(each.held_bytes for each in listed)
    return [
        by_holder.get(each.id) if held_bytes is None else held_bytes
        for each, held_bytes in zip(holders, held, strict=True)
    ]


def held_by(holder_id: str, gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return it by UUID, for a container or a slice; of a GPU whose driver lists no programs nothing."""
    ids, pids = {holder_id}, set[int]()
    for found in store.slices():
        if found.id == holder_id:
            joined = members([found])[found.id]
            ids |= {each.container for each in joined if each.container}
            pids |= {each.pid for each in joined if not each.container}
            around = [(each, {each.slice_folder, *map(str, each.parents)}) for each in local_processes()]
            pids |= {int(each.id) for each, folders in around if str(found.folder) in folders}
    return {
        uuid: sum(each.held_bytes for owner, held in by_owner.items() if owner for each in held)
        for uuid, by_owner in programs(gpus, ids, dict.fromkeys(pids, holder_id)).items()
    }
