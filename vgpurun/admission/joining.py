"""Admits a launch to a slice. The slice was admitted when it was made, so the launch needs no room of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from vgpurun.admission.placement import Placement
from vgpurun.host.gpus import Gpu
from vgpurun.limits.model import Joined, Limits
from vgpurun.slices import store
from vgpurun.slices.quotas import quotas_on


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

    def confirm(self, taken: str) -> None:
        """Nothing is to be given back here: the end of granted() looks whether the slice is there still."""
