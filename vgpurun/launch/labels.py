"""What vgpurun writes on its containers: the names of the labels, and quotas as a label has them.

Apart from plan.py, which makes them, so that verbs that only read labels start without it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpurun.limits.policies import PRIORITIES, SM_POLICIES, Priority, SmPolicy
from vgpurun.limits.quota import Quota

if TYPE_CHECKING:
    from vgpurun.launch.plan import DeviceQuota

LABEL_VERSION = "vgpurun.version"
LABEL_STATE = "vgpurun.state"
LABEL_SLICE = "vgpurun.slice"  # the folder of the slice that a container has joined
LABEL_QUOTA = "vgpurun.quota"
LABEL_USER = "vgpurun.user"


def quotas_to_json(quotas: Sequence["DeviceQuota"]) -> str:
    """Return quotas as the label vgpurun.quota has them: a list in the order of the container's devices."""
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
    """Return the UUIDs and quotas of the label vgpurun.quota; nothing when it is not such a list."""
    try:
        return [(str(each["uuid"]), _quota_from_json(each)) for each in json.loads(text)]
    except (ValueError, KeyError, TypeError):
        return []


def _quota_from_json(each: Mapping[str, Any]) -> Quota:
    """What an older version has not written is as it was then."""
    return Quota(
        each["memory_bytes"],
        each["sm_percent"],
        SM_POLICIES.get(each.get("sm_policy", ""), SmPolicy.HARD),
        PRIORITIES.get(each.get("priority", ""), Priority.HIGH),
        virtual_bytes=each.get("virtual_bytes"),
    )
