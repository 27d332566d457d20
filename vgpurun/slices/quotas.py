"""A slice's quota on each of its GPUs."""

from collections.abc import Sequence

from vgpurun.errors import SliceError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.model import DeviceQuota
from vgpurun.slices.store import Slice


def quotas_on(found: Slice, gpus: Sequence[Gpu]) -> tuple[DeviceQuota, ...]:
    """Return a slice's quotas with its GPUs. Raises SliceError when one of them is not among these."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    missing = [uuid for uuid, _ in found.quotas if uuid not in by_uuid]
    if missing:
        way_out = "add --driver sim" if found.driver == "sim" else found.removal
        raise SliceError(f"{found.named} is on GPU {missing[0]}, which this host does not have; {way_out}")
    return tuple(DeviceQuota(by_uuid[uuid], quota) for uuid, quota in found.quotas)
