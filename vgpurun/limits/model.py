"""A launch's request and its result as plain data, and the JSON of the result in an owner file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun import abi
from vgpurun.host.gpu import Gpu
from vgpurun.limits import quota
from vgpurun.limits.oversubscription import parse_oversubscription
from vgpurun.limits.policies import PRIORITIES, SM_POLICIES, Priority, SmPolicy
from vgpurun.limits.quota import MemoryLimit, MemorySize, PerDevice, Quota
from vgpurun.util.printable import printable


@dataclass(frozen=True)
class Limits:
    """--mem, --sm (in percent; 100: no limit), --sm-policy, --priority, --oversubscribe, --swap and --together.

    None: not given. With `together` --sm is a part of the SMs, and no limit of time.
    """

    memory: PerDevice[MemoryLimit] | None = None
    sm: PerDevice[int] | None = None
    sm_policy: SmPolicy | None = None
    priority: Priority | None = None
    oversubscribe: PerDevice[MemorySize] | None = None
    swap: bool = False
    together: bool = False

    @classmethod
    def read(
        cls,
        memory: str | None = None,
        sm: str | None = None,
        sm_policy: str | None = None,
        priority: str | None = None,
        oversubscribe: str | None = None,
        swap: bool = False,
        together: bool = False,
    ) -> "Limits":
        """Read the options as they were written. Raises LimitError."""
        return cls(
            None if memory is None else quota.parse_per_device(memory, quota.parse_memory),
            None if sm is None else quota.parse_per_device(sm, quota.parse_share),
            None if sm_policy is None else SM_POLICIES[sm_policy],
            None if priority is None else PRIORITIES[priority],
            None if oversubscribe is None else parse_oversubscription(oversubscribe),
            swap,
            together,
        )


class DeviceQuota(NamedTuple):
    """A chosen GPU and what the launch may use of it."""

    gpu: Gpu
    quota: Quota


@dataclass(frozen=True)
class Joined:
    """The slice that a launch joins: its folder has the limits and the usage, and these are its quotas."""

    folder: Path
    quotas: tuple[DeviceQuota, ...]


@dataclass(frozen=True)
class Part:
    """The part that a launch gets of a share that it becomes a part of: limits and usage of its own, and these quotas.

    `parents` are the folders of the shares around it, the next one first.
    """

    quotas: tuple[DeviceQuota, ...]
    parents: tuple[Path, ...]


def quotas_to_json(quotas: Sequence[DeviceQuota]) -> str:
    """Return quotas as an owner file has them: a list in the order of the container's devices."""
    return json.dumps(
        [
            {
                "uuid": each.gpu.uuid,
                "memory_bytes": each.quota.memory_bytes,
                "guaranteed_bytes": each.quota.guaranteed_bytes,
                "virtual_bytes": each.quota.virtual_bytes,
                "sm_percent": each.quota.sm_percent,
                "sm_policy": each.quota.sm_policy.name.lower(),
                "priority": each.quota.priority.name.lower(),
                "swap": each.quota.takes_turns,
                "together": each.quota.together,
                "sms_percent": each.quota.sms_percent,
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
    """Read a quota; a field that an older version did not write has that version's behaviour."""
    return Quota(
        limit_within(each["memory_bytes"], abi.NO_MEMORY_LIMIT),
        limit_within(each["sm_percent"], 100),
        SM_POLICIES.get(each.get("sm_policy", ""), SmPolicy.HARD),
        PRIORITIES.get(each.get("priority", ""), Priority.HIGH),
        virtual_bytes=limit_within(each.get("virtual_bytes"), abi.NO_MEMORY_LIMIT),
        guaranteed_bytes=limit_within(each.get("guaranteed_bytes"), abi.NO_MEMORY_LIMIT),
        takes_turns=each.get("swap") is True,
        together=each.get("together") is True,
        sms_percent=limit_within(each.get("sms_percent"), 100),
    )


def limit_within(number: Any, most: int) -> int | None:
    """Return a limit that another user may have written, and all sums count. Raises ValueError if it is none."""
    if number is None or (type(number) is int and 0 <= number <= most):
        return number
    raise ValueError(number)
