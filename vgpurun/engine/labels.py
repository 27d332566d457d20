"""Tells containers of vgpurun from others, and what is known of them.

A label has the name of a container's state folder, its mounts say where that is, and the folder's `owner` file has the
container's id and what was said at the launch. An image that is committed of a container carries the label on, and so
it has no path of this host. A container is vgpurun's only where the engine says that limits are mounted in it, and the
folder does not name another container.

Where others may not read the folder, as in a home that is closed to them, a second label has what the container holds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from vgpurun import abi
from vgpurun.limits.model import limit_within, quotas_from_json
from vgpurun.limits.quota import Quota
from vgpurun.options.mount_targets import PRELOAD_FILES
from vgpurun.storage import state
from vgpurun.util.printable import printable

if TYPE_CHECKING:
    from vgpurun.limits.model import DeviceQuota

LABEL_STATE = "vgpurun.state"
OF_A_LOOK = "-"  # in the place of a state folder: a container that is there to read its image, and never started
LABEL_HOLDS = "vgpurun.holds"  # for others, who may not read the state folder
_LABEL_VERSION = "vgpurun.version"  # these are on containers of earlier versions, whose owner file does not have them
_LABEL_QUOTA = "vgpurun.quota"
_LABEL_USER = "vgpurun.user"
_LIMITS_TARGETS = [f"{abi.CONTAINER_DIR}{'/parent' * level}/etc" for level in range(abi.MAX_LEVELS)]
_OWN_TARGETS = f"{abi.CONTAINER_DIR}/"


@dataclass(frozen=True)
class Record:
    """A container of vgpurun, as far as is known. `slice_folder` is that of a slice that it is in, or nothing.

    `parents`: the folders of the shares that it is a part of, with limits of its own. It has joined a slice without.
    `ends_s` is when it is to be stopped, by the boot clock.
    """

    state_folder: str
    slice_folder: str = ""
    quotas: tuple[tuple[str, Quota], ...] = ()
    user: str = ""
    version: str = ""
    ends_s: float | None = None
    parents: tuple[str, ...] = ()


def read_record(container: str, labels: Mapping[str, str], mounts: Sequence[Mapping[str, Any]]) -> Record | None:
    """Return what is known of a container, by its id, or None where vgpurun did not make it. Raises nothing.

    `mounts` are the engine's own list. A container of which nobody has written down the id yet is about to be started.
    """
    sources = [(str(each.get("Destination")), str(each.get("Source") or "")) for each in mounts]
    folder, folders = _places(str(labels.get(LABEL_STATE, "")), tuple(sources))
    if not folder or not folders or "\0" in folder:  # which no path may have
        return None
    owner = state.known_owner(Path(folder)) or {}
    if owner.get("container", container) != container:
        return None
    ends_s = None if owner.get("has_ended") else state.ends_s(owner)
    slice_folder = next((str(each) for each in folders if each.parent.name == state.SLICES), "")
    return Record(folder, slice_folder, *_words(owner, labels), ends_s, tuple(map(str, folders[1:])))


@lru_cache(maxsize=1024)  # the guard lists the same containers again and again
def _places(label: str, mounts: tuple[tuple[str, str], ...]) -> tuple[str, tuple[Path, ...]]:
    """Return the state folder, and that of each level's limits, by the targets and sources of mounts."""
    sources = dict(mounts)
    own = [source for target, source in sources.items() if target in PRELOAD_FILES or target.startswith(_OWN_TARGETS)]
    folders = (Path(source).parent for target in _LIMITS_TARGETS if (source := sources.get(target)))
    return _state_folder(label, own), tuple(folders)


def state_label(folder: Path, sources: Collection[str]) -> str:
    """Return the label of a container with mounts of these sources: the folder's name, where they say the rest."""
    return folder.name if _state_folder(folder.name, sources) == str(folder) else str(folder)


def _state_folder(label: str, sources: Collection[str]) -> str:
    """Return the state folder that a label names among the sources of mounts, or nothing.

    A label of an earlier version is the folder's path.
    """
    if not label or "/" in label:
        return label
    paths = (path for source in sources for path in PurePosixPath(source).parents)
    return next((str(path) for path in paths if (path.parent.name, path.name) == (state.CONTAINERS, label)), "")


def _words(owner: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[tuple[tuple[str, Quota], ...], str, str]:
    """Return quotas, user and version as said at the launch: in the owner file, or in labels of any version."""
    if "quota" in owner:
        quotas = _quotas(str(owner["quota"]))
        user, version = str(owner.get("user")), str(owner.get("version"))
    elif LABEL_HOLDS in labels:
        user, *held = labels[LABEL_HOLDS].split(";")
        quotas, version = tuple(quota for quota in map(_held, held) if quota), ""
    else:
        quotas = _quotas(labels.get(_LABEL_QUOTA, ""))
        user, version = labels.get(_LABEL_USER, ""), labels.get(_LABEL_VERSION, "")
    return quotas, printable(user), printable(version)


@lru_cache(maxsize=1024)  # the same
def _quotas(text: str) -> tuple[tuple[str, Quota], ...]:
    return tuple(quotas_from_json(text))


def holds_label(user: str, quotas: Sequence["DeviceQuota"]) -> str:
    """Return what a container holds as one word without commas, for readers of `docker events`."""
    return ";".join(
        [user, *(f"{gpu.uuid}:{quota.memory_bytes or ''}:{quota.sm_percent or ''}" for gpu, quota in quotas)]
    )


def _held(text: str) -> tuple[str, Quota] | None:
    try:
        uuid, memory, sm = text.rsplit(":", 2)
        memory_bytes, sm_percent = (int(number) if number else None for number in (memory, sm))
        return printable(uuid), Quota(limit_within(memory_bytes, abi.NO_MEMORY_LIMIT), limit_within(sm_percent, 100))
    except ValueError:
        return None
