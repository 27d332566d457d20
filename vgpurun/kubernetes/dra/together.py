"""Claims whose containers work at the same time: such a claim is a group, as a slice made with --together is.

A claim is of one namespace, and so is the group. Its server is root's. The plugin makes the folder of pipes, and
engines run this file as their hook for each container (cdi/together_hook.py).
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vgpurun.cdi.edits import Edits, distrust, together_edits
from vgpurun.cdi.together_hook import run
from vgpurun.errors import ClaimError, TogetherError
from vgpurun.kubernetes.dra.claim import ClaimName
from vgpurun.kubernetes.dra.state import Claims, Prepared
from vgpurun.launch.together import server_program
from vgpurun.limits.model import DeviceQuota
from vgpurun.slices.store import Slice
from vgpurun.together.group import Group
from vgpurun.together.server import sweep

_IN_A_POD = "KUBERNETES_SERVICE_HOST"
_PATIENCE_S, _POLL_S = 10.0, 0.1
_HOOK = "vgpurun.kubernetes.dra.together"


@dataclass(frozen=True)
class _Claim(Slice):
    """A prepared claim as what containers join: root's."""

    @property
    def named(self) -> str:
        return f"claim {self.name}"

    @property
    def removal(self) -> str:
        return "delete the pods that use it"


def check(claim: ClaimName, quotas: Sequence[DeviceQuota], simulated: Path | None) -> None:
    """Raise ClaimError for a claim whose containers cannot work at the same time on this node."""
    try:
        if _IN_A_POD in os.environ:
            raise TogetherError("engines run hooks on the node itself, and this node's plugin runs in a pod")
        if trouble := distrust():
            raise TogetherError(trouble)
        server_program([each.gpu for each in quotas], "sim" if simulated else "host")
    except TogetherError as error:
        raise ClaimError(f"{claim} has together, which this node cannot give: {error}") from None


def edits(folder: Path, simulated: Path | None) -> Edits:
    """Return what has a container join the server of the claim with this state folder. Raises TogetherError."""
    return together_edits(folder, str(Group.of(folder).offer()), simulated, _HOOK)


def withdraw(prepared: Prepared) -> None:
    """Have nothing be left of a claim's server and pipes: the next claim's folder may have the same inode.

    Raises ClaimError where programs are in it still, and TogetherError.
    """
    group, give_up_s = Group.of(prepared.folder), time.monotonic() + _PATIENCE_S
    group.withdraw()
    while True:
        sweep()
        if not group.folder.exists():
            return
        if time.monotonic() > give_up_s:
            raise ClaimError(f"{prepared.claim}: its MPS server has not ended: containers are in it still")
        time.sleep(_POLL_S)


def _find(folder: Path, is_simulated: bool) -> Slice:
    """Raises ClaimError."""
    prepared = Claims(folder.parents[1]).find(folder.name)
    if prepared is None:
        raise ClaimError(f"claim {folder.name} is not prepared")
    name = f"{prepared.claim.namespace}/{prepared.claim.name}"
    return _Claim(name, folder, prepared.quotas, "root", driver="sim" if is_simulated else "host")


if __name__ == "__main__":
    sys.exit(run(_find))
