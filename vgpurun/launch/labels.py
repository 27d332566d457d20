"""Tells containers of vgpurun from others, and what is known of them.

A label names a container's state folder, and the folder's `owner` file has the container's id and what was said at the
launch. An image that is committed of a container carries the label on: so a container is vgpurun's only where the
engine says that limits are mounted in it, and the folder does not name another container.

Where others may not read the folder, as in a home that is closed to them, a second label has what the container holds.

Apart from plan.py, so that verbs that only read start without it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vgpurun import abi
from vgpurun.limits import state
from vgpurun.limits.policies import PRIORITIES, SM_POLICIES, Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.util.printable import printable

if TYPE_CHECKING:
    from vgpurun.launch.plan import DeviceQuota

LABEL_STATE = "vgpurun.state"
OF_A_LOOK = "-"  # in the place of a state folder: a container that is there to read its image, and never started
LABEL_HOLDS = "vgpurun.holds"  # where others may not read the state folder
_LABEL_VERSION = "vgpurun.version"  # these are on containers of earlier versions, whose owner file does not have them
_LABEL_QUOTA = "vgpurun.quota"
_LABEL_USER = "vgpurun.user"
SLICES = "slices"  # the folder of all slices, in the state's root
_LIMITS_TARGET = f"{abi.CONTAINER_DIR}/etc"


class Record(NamedTuple):
    """A container of vgpurun, as far as is known. `slice_folder` is that of a slice that it has joined, or nothing."""

    state_folder: str
    slice_folder: str = ""
    quotas: tuple[tuple[str, Quota], ...] = ()
    user: str = ""
    version: str = ""


def read_record(container: str, labels: Mapping[str, str], mounts: Sequence[Mapping[str, Any]]) -> Record | None:
    """Return what is known of a container, by its id, or None where vgpurun did not make it. Raises nothing.

    `mounts` are the engine's own list. A container of which nobody has written down the id yet is about to be started.
    """
    folder = labels.get(LABEL_STATE)
    source = next((each.get("Source") for each in mounts if each.get("Destination") == _LIMITS_TARGET), None)
    if not folder or not source:
        return None
    owner = state.read_owner(Path(folder)) or {}
    if owner.get("container", container) != container:
        return None
    limits_folder = Path(source).parent
    joined = str(limits_folder) if limits_folder.parent.name == SLICES else ""
    return _with_words(Record(folder, joined), owner, labels)


def _with_words(found: Record, owner: Mapping[str, Any], labels: Mapping[str, str]) -> Record:
    """Add what was said at the launch, from the owner file, or else from labels of this version or an earlier one."""
    if "quota" in owner:
        quotas = quotas_from_json(str(owner["quota"]))
        user, version = str(owner.get("user")), str(owner.get("version"))
    elif LABEL_HOLDS in labels:
        user, *held = labels[LABEL_HOLDS].split(";")
        quotas, version = [quota for quota in map(_held, held) if quota], ""
    else:
        quotas = quotas_from_json(labels.get(_LABEL_QUOTA, ""))
        user, version = labels.get(_LABEL_USER, ""), labels.get(_LABEL_VERSION, "")
    return found._replace(quotas=tuple(quotas), user=printable(user), version=printable(version))


def holds_label(user: str, quotas: Sequence["DeviceQuota"]) -> str:
    """Return what a container holds as one word without commas, for readers of `docker events`."""
    return ";".join(
        [user, *(f"{gpu.uuid}:{quota.memory_bytes or ''}:{quota.sm_percent or ''}" for gpu, quota in quotas)]
    )


def _held(text: str) -> tuple[str, Quota] | None:
    try:
        uuid, memory, sm = text.rsplit(":", 2)
        memory_bytes, sm_percent = (int(number) if number else None for number in (memory, sm))
        return printable(uuid), Quota(_within(memory_bytes, abi.NO_MEMORY_LIMIT), _within(sm_percent, 100))
    except ValueError:
        return None


def quotas_to_json(quotas: Sequence["DeviceQuota"]) -> str:
    """Return quotas as an owner file has them: a list in the order of the container's devices."""
    return json.dumps(
        [
            {
                "uuid": each.gpu.uuid,
                "memory_bytes": each.quota.memory_bytes,
                "virtual_bytes": each.quota.virtual_bytes,
                "sm_percent": each.quota.sm_percent,
                "sm_policy": each.quota.sm_policy.name.lower(),
                "priority": each.quota.priority.name.lower(),
            }
            for each in quotas
        ]
    )


def quotas_from_json(text: str) -> list[tuple[str, Quota]]:
    """Return the UUIDs and quotas of such a list; nothing when the text is none."""
    try:
        return [(printable(str(each["uuid"])), _quota_from_json(each)) for each in json.loads(text)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _quota_from_json(each: Mapping[str, Any]) -> Quota:
    """What an older version has not written is as it was then."""
    return Quota(
        _within(each["memory_bytes"], abi.NO_MEMORY_LIMIT),
        _within(each["sm_percent"], 100),
        SM_POLICIES.get(each.get("sm_policy", ""), SmPolicy.HARD),
        PRIORITIES.get(each.get("priority", ""), Priority.HIGH),
        virtual_bytes=_within(each.get("virtual_bytes"), abi.NO_MEMORY_LIMIT),
    )


def _within(number: Any, most: int) -> int | None:
    """Return a limit as it was written, by somebody whose words all others add up. Raises ValueError if it is none."""
    if number is None or (type(number) is int and 0 <= number <= most):
        return number
    raise ValueError(number)
