"""Lets a launch into a slice: what a slice has was admitted when it was made, so that nothing has to be asked for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from vgpurun.admission.placement import Placement
from vgpurun.errors import SliceError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.model import DeviceQuota, Joined, Limits
from vgpurun.slices import store
from vgpurun.slices.store import Slice


class Joining(NamedTuple):
    """A launch that joins a slice, in the place of an Admission. `gpus` are all of the host."""

    name: str
    gpus: Sequence[Gpu]

    def look(self) -> Placement:
        """Return the slice's GPUs and limits. Raises SliceError."""
        with self.granted() as placement:
            return placement

    @contextmanager
    def granted(self) -> Iterator[Placement]:
        """Yield the slice's GPUs and limits; at the end the launch must be seen to have joined. Raises SliceError."""
        with store.joining(self.name) as found:
            quotas = quotas_on(found, self.gpus)
            yield Placement(tuple(each.gpu for each in quotas), Limits(), Joined(found.folder, quotas))

    def confirm(self, container: str) -> None:
        """Nothing can have come between: a slice is not removed while somebody joins it."""


def quotas_on(found: Slice, gpus: Sequence[Gpu]) -> tuple[DeviceQuota, ...]:
    """Return a slice's quotas with its GPUs. Raises SliceError when one of them is not among these."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    missing = [uuid for uuid, _ in found.quotas if uuid not in by_uuid]
    if missing:
        way_out = "add --driver sim" if found.driver == "sim" else f"remove it: vgpurun slice rm {found.name}"
        raise SliceError(f"slice {found.name} is of GPU {missing[0]}, which is not on this host; {way_out}")
    return tuple(DeviceQuota(by_uuid[uuid], quota) for uuid, quota in found.quotas)
