"""The state folders of the device plugin's containers.

    <root>/kubernetes/units-<hash>/   as every container's state folder (storage/state.py); the hash is of its units
                          owner       JSON: the resource and the units; pod_uid and container once it has started

A folder is found again by its units, so nothing else has to be kept. Kubelet gives units anew when their pod is gone:
then the folder that had one of them is removed. It stays where a process still holds GPU memory under its limits, for
then kubelet has lost its record, and the units are not free.
"""

import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from vgpurun.errors import KubernetesError, StateError
from vgpurun.kubernetes.locks import one_at_a_time
from vgpurun.limits import limits_file, usage_file
from vgpurun.storage import state, tenants

_PREFIX = "units-"


def alone(root: Path) -> AbstractContextManager[None]:
    """Until this ends nobody else makes, grants or removes a state folder. Entering it raises StateError."""
    return one_at_a_time(state_root(root))


def state_root(root: Path) -> Path:
    """Return where the state folders are."""
    return root / "kubernetes"


def folder_of(root: Path, resource: str, units: Iterable[str]) -> Path:
    """Return the state folder of a container by what it has."""
    digest = hashlib.sha256("\n".join([resource, *sorted(units)]).encode()).hexdigest()
    return state_root(root) / f"{_PREFIX}{digest[:24]}"


def all_folders(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every state folder and what is written about its owner; one that was never finished has nothing."""
    for folder in sorted(state_root(root).glob(f"{_PREFIX}*")):
        yield folder, state.known_owner(folder) or {}


def units_of(owner: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return the (resource, id) that the owner file of a container's folder names; none where it is unreadable."""
    resource, units = owner.get("resource"), owner.get("units")
    return frozenset((str(resource), str(unit)) for unit in units) if isinstance(units, list) else frozenset()


def make_folder(root: Path, resource: str, units: Collection[str], files: Mapping[str, bytes]) -> Path:
    """Make the state folder of units that were given anew; what their last container left is removed. The caller
    must have been alone() since it looked.

    Raises KubernetesError for units that are still in use, and StateError.
    """
    wanted = {(resource, unit) for unit in units}
    for folder, owner in all_folders(root):
        if not owner or units_of(owner) & wanted:
            if is_in_use(folder):
                raise KubernetesError(
                    f"a process still uses {resource} that kubelet takes for free; it is under the limits in {folder}"
                )
            tenants.remove(folder)
            shutil.rmtree(folder, ignore_errors=True)
    path = folder_of(root, resource, units)
    state.StateFolder.make(path, files, {"resource": resource, "units": sorted(units)}).close()
    tenants.make(path)
    return path


def is_whole(folder: Path) -> bool:
    """Whether a state folder is there with all that was written into it; a crash of the host may leave less."""
    try:
        return state.read_owner(folder) is not None and limits_file.read_limits(folder / "etc" / "limits") is not None
    except OSError:
        return False


def is_in_use(folder: Path) -> bool:
    """Whether a process holds memory of a GPU under the limits of this folder."""
    try:
        limits = limits_file.read_limits(folder / "etc" / "limits")
    except OSError:
        return False
    readings = usage_file.read_usage(folder / "run" / "usage", [uuid for uuid, _ in limits or ()])
    return any(reading.processes for reading in readings or ())


def write_owner(folder: Path, owner: Mapping[str, Any]) -> None:
    """Say whose a folder is. Raises StateError."""
    try:
        state.write_owner(folder, owner)
    except OSError as error:
        raise StateError(f"cannot write {folder / 'owner'}: {error.strerror}") from None
