"""Admits a launch as a part of a share. The share was admitted as a whole, so its part needs no room of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun import abi
from vgpurun.admission.placement import Placement
from vgpurun.admission.request import Candidates, Request, candidates
from vgpurun.errors import GpuError, SliceError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.model import Limits, Part
from vgpurun.limits.nested import Share, folders_above, own_share, quotas_within, share_of
from vgpurun.slices import store


@dataclass(frozen=True)
class Nesting:
    """A launch that becomes a part of a slice, or of this process's own share, in the place of an Admission.

    `gpus` are all that can be seen, `chosen` is --gpus.
    """

    within: Share | str
    limits: Limits
    gpus: Sequence[Gpu]
    chosen: str | None = None

    def look(self) -> Placement:
        """Return the launch's GPUs and its part of them. Raises LimitError, GpuError and SliceError."""
        with self.granted() as placement:
            return placement

    @contextmanager
    def granted(self) -> Iterator[Placement]:
        """Yield the launch's GPUs and its part of them. Raises LimitError, GpuError and SliceError."""
        if isinstance(self.within, Share):
            yield self._part_of(self.within)
        else:
            with store.joining(self.within) as found:
                yield self._part_of(share_of(found.folder))

    def confirm(self, taken: str) -> None:
        """Nothing can have come between: the share is there, whatever others do."""

    def _part_of(self, share: Share) -> Placement:
        if not share.quotas:
            raise GpuError(f"this share has no GPU of which it could give a part: {share.folder}")
        theirs = {uuid for uuid, _ in share.quotas}
        gpus = [gpu for gpu in self.gpus if gpu.uuid in theirs]
        if not gpus:
            raise GpuError("none of the GPUs visible here belong to this share")
        names_some = self.chosen is not None or any(
            each and each.by_device for each in (self.limits.memory, self.limits.sm)
        )
        wanted = candidates(Request(self.limits, self.chosen), gpus) if names_some else Candidates(tuple(gpus))
        chosen = wanted.all[: wanted.total]
        part = Part(quotas_within(share, chosen, self.limits), (share.folder, *folders_above(share.folder)))
        return Placement(chosen, Limits(), part=part)


def share_on_host() -> Share | None:
    """Return this process's own share as the engine of this host knows it, or None without limits.

    Raises LimitError, and SliceError where it is not known: a container's place on the host is not to be seen from
    inside.
    """
    share = placed_share()
    if share and any(each.is_relative_to(abi.CONTAINER_DIR) for each in (share.folder, *folders_above(share.folder))):
        raise SliceError(
            "this program is in a container with limits, whose place on the host is not known here; run processes "
            "within it by vgpurun local, and containers from the host"
        )
    return share


def placed_share() -> Share | None:
    """Return this process's own share by its place on the host where that can be seen, or None without limits.

    A job's share is mounted where a container has its own. Raises LimitError.
    """
    share = own_share()
    if share is None or share.folder != Path(abi.CONTAINER_DIR):
        return share
    with suppress(OSError):
        inside = Path(abi.CONTAINER_USAGE).stat()
        for each in store.slices():
            with suppress(OSError):
                if os.path.samestat(each.usage.stat(), inside):
                    return share_of(each.folder)
    return share
