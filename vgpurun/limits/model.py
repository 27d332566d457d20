"""A launch's request and its result as plain data, and the JSON of the result in an owner file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun import abi
from vgpurun.host.gpu import Gpu
from vgpurun.limits import quota
from vgpurun.limits.policies import PRIORITIES, SM_POLICIES, Priority, SmPolicy
from vgpurun.limits.quota import PerDevice, Quota
from vgpurun.util.printable import printable


@dataclass(frozen=True)
class Limits:
    """--mem, --sm, --sm-policy, --priority, --oversubscribe and --swap as they were written."""

    memory: str | None = None
    sm: str | None = None
    sm_policy: str | None = None
    priority: str | None = None
    oversubscribe: str | None = None
    swap: bool = False


def texts_by_device(limits: Limits) -> tuple[PerDevice[str | None], PerDevice[str | None]]:
    """Read --mem and --sm down to the text for each device, every one of which must be a limit or `max`."""
    memory: PerDevice[str | None] = PerDevice()
    sm: PerDevice[str | None] = PerDevice()
    if limits.memory is not None:
        quota.parse_per_device(
            limits.memory, lambda text: None if is_max(text) else quota.parse_range(text, quota.parse_limit)
        )
        memory = quota.parse_per_device(limits.memory, str)
    if limits.sm is not None:
        quota.parse_per_device(limits.sm, quota.parse_share)
        sm = quota.parse_per_device(limits.sm, str)
    if limits.oversubscribe is not None:
        quota.parse_per_device(limits.oversubscribe, quota.parse_size)
    return memory, sm


def check_limits(limits: Limits) -> None:
    """Raise LimitError for limits that cannot be read."""
    texts_by_device(limits)


def is_max(text: str) -> bool:
    """Whether a memory limit is all that is left on the GPU."""
    return text.strip().lower() == "max"


class DeviceQuota(NamedTuple):
    """One chosen GPU and what the launch may use of it."""

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
    )


def limit_within(number: Any, most: int) -> int | None:
    """Return a limit that another user may have written, and all sums count. Raises ValueError if it is none."""
    if number is None or (type(number) is int and 0 <= number <= most):
        return number
    raise ValueError(number)
