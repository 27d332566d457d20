"""The memory that the programs of one holder have on the GPUs by the driver's word, which none of them can write."""

from collections.abc import Sequence

from vgpurun.host.gpus import Gpu
from vgpurun.inventory.programs import programs
from vgpurun.inventory.reservations import local_processes
from vgpurun.slices import store
from vgpurun.slices.members import members


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
