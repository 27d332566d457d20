"""Finds the holders of this node's GPUs, with the names that Kubernetes has for them.

A tenant is a claim, or the units of a container. Its state folder says what it has; kubelet says which containers of
which pods that is. A claim that several containers use has their names joined: `alice,bob`.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.inventory.reservations import Holder
from vgpurun.kubernetes.dra.state import Claims
from vgpurun.kubernetes.pods import PodContainer
from vgpurun.kubernetes.state import all_folders, units_of
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota


def find_tenants(root: Path, containers: Sequence[PodContainer]) -> list[Holder]:
    """Return the tenants that `containers` use, as what state folders under `root` say they have."""
    found = []
    for prepared in Claims(root).all():
        name = (prepared.claim.namespace, prepared.claim.name)
        users = [each for each in containers if name in each.claims]
        found.append(_holder("claim", prepared.claim.uid, prepared.folder, users))
    for folder, owner in all_folders(root):
        units = units_of(owner)
        users = [each for each in containers if units and units <= each.units]
        found.append(_holder("units", folder.name, folder, users))
    return [each for each in found if each.pod]


def _holder(kind: str, identity: str, folder: Path, users: Iterable[PodContainer]) -> Holder:
    def names(read: Callable[[PodContainer], str]) -> str:
        return ",".join(sorted({read(each) for each in users}))

    users = list(users)
    return Holder(
        kind=kind,
        id=identity,
        name=names(lambda each: each.name),
        what="",
        user="",
        folder=folder,
        quotas=_quotas(folder),
        namespace=names(lambda each: each.namespace),
        pod=names(lambda each: each.pod),
    )


def _quotas(folder: Path) -> tuple[tuple[str, Quota], ...]:
    with suppress(OSError):
        return tuple(limits_file.read_limits(folder / "etc" / "limits") or ())
    return ()
