"""The limits file of a container: the host writes it, and the library and the host read it."""

import os
from collections.abc import Callable, Sequence
from ctypes import sizeof
from dataclasses import replace
from pathlib import Path

from vgpurun import abi
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.storage import tenants
from vgpurun.storage.shared_file import read_regular
from vgpurun.util.nofollow import open_nofollow


def limits_bytes(
    limits: Sequence[tuple[str, Quota]],
    may_disable: bool = False,
    has_parent: bool = False,
    movable: bool = False,
    moves: int = 0,
) -> bytes:
    """Return the content of a limits file: the UUID and quota of each device, in the order of their NVML index.

    `may_disable`: whether a program may lift its limits by CUDA_DISABLE_CONTROL=true. `has_parent`: whether this is a
    part of another share, which is found as `parent` beside the file's folder. `movable`: whether containers of it have
    the nodes of other GPUs too. `moves`: how often it has changed its GPUs.
    """
    content = abi.Limits(magic=abi.LIMITS_MAGIC, abi_version=abi.ABI_VERSION, device_count=len(limits))
    content.may_disable = may_disable
    content.has_parent = has_parent
    content.swap = any(quota.takes_turns for _, quota in limits)
    content.movable = movable
    content.moves = moves
    content.together = any(quota.together for _, quota in limits)
    content.suspended = max((quota.suspended for _, quota in limits), default=abi.NOT_SUSPENDED)
    for device, (uuid, quota) in zip(content.devices, limits, strict=False):
        device.uuid = uuid.encode()
        device.memory_limit_bytes = abi.NO_MEMORY_LIMIT if quota.memory_bytes is None else quota.memory_bytes
        device.sm_limit_percent = abi.NO_SM_LIMIT if quota.sm_percent is None else quota.sm_percent
        device.virtual_limit_bytes = quota.virtual_bytes or 0
        device.sm_policy = quota.sm_policy.value
        device.priority = quota.priority.value
        device.paused = quota.paused
        device.guaranteed_bytes = quota.guaranteed_bytes or 0
        device.sms_percent = quota.sms_percent or 0
    return bytes(content)


def write_limits(path: Path, limits: Sequence[tuple[str, Quota]], may_disable: bool = False) -> None:
    """Change the limits file of a state folder in place: running processes have it mapped and see it at the next call.

    The other tenants on its GPUs are told. A part of another share remains one. Raises OSError.
    """
    _rewrite(
        path,
        lambda before: limits_bytes(limits, may_disable, bool(before.has_parent), bool(before.movable), before.moves),
    )


def write_gpus(path: Path, limits: Sequence[tuple[str, Quota]], has_moved: bool) -> None:
    """Change in the same way which GPUs a share has, and nothing else. `has_moved`: these are others than at its start.

    The tenants on both are told. Raises OSError.
    """
    _rewrite(
        path,
        lambda before: limits_bytes(
            limits, bool(before.may_disable), bool(before.has_parent), bool(before.movable), before.moves + has_moved
        ),
    )


def _rewrite(path: Path, changed: Callable[[abi.Limits], bytes]) -> None:
    file = open_nofollow(path, os.O_RDWR)
    try:
        before = os.pread(file, sizeof(abi.Limits), 0).ljust(sizeof(abi.Limits), b"\0")
        content = changed(abi.Limits.from_buffer_copy(before))
        os.pwrite(file, content, 0)
    finally:
        os.close(file)
    tenants.tell(path.parent.parent, content)


def set_suspended(path: Path, suspended: int) -> None:
    """Say to running processes whether their GPUs are taken: SUSPENDED and so on of abi.py. Raises OSError."""
    file = open_nofollow(path, os.O_WRONLY)
    try:
        os.pwrite(file, suspended.to_bytes(4, "little"), abi.Limits.suspended.offset)
    finally:
        os.close(file)


def read_limits(path: Path) -> list[tuple[str, Quota]] | None:
    """Return the UUIDs and quotas of a limits file in its order, or None when it is none. Raises OSError."""
    limits = _read(path)
    if limits is None:
        return None
    devices = limits.devices[: min(limits.device_count, abi.MAX_DEVICES)]
    suspended = limits.suspended if limits.suspended <= abi.SWAPPED else abi.SUSPENDED
    return [
        (
            device.uuid.decode(errors="replace"),
            replace(
                _quota_of(device), suspended=suspended, takes_turns=limits.swap != 0, together=limits.together != 0
            ),
        )
        for device in devices
    ]


def has_parent(path: Path) -> bool:
    """Ask whether a limits file is that of a part of another share. Raises OSError."""
    limits = _read(path)
    return limits is not None and limits.has_parent != 0


def is_movable(path: Path) -> bool:
    """Ask whether containers of a share have the nodes of other GPUs too. Raises OSError."""
    limits = _read(path)
    return limits is not None and limits.movable != 0


def _read(path: Path) -> abi.Limits | None:
    content = read_regular(path, sizeof(abi.Limits))
    if content is None or len(content) < sizeof(abi.Limits):
        return None
    limits = abi.Limits.from_buffer_copy(content)
    return limits if limits.magic == abi.LIMITS_MAGIC and limits.abi_version == abi.ABI_VERSION else None


def _quota_of(device: abi.DeviceLimit) -> Quota:
    return Quota(
        None if device.memory_limit_bytes == abi.NO_MEMORY_LIMIT else device.memory_limit_bytes,
        None if device.sm_limit_percent == abi.NO_SM_LIMIT else device.sm_limit_percent,
        SmPolicy(device.sm_policy) if device.sm_policy in {policy.value for policy in SmPolicy} else SmPolicy.HARD,
        Priority.HIGH if device.priority == abi.PRIORITY_HIGH else Priority.LOW,
        bool(device.paused),
        device.virtual_limit_bytes if device.virtual_limit_bytes > device.memory_limit_bytes else None,
        guaranteed_bytes=device.guaranteed_bytes if 0 < device.guaranteed_bytes < device.memory_limit_bytes else None,
        sms_percent=device.sms_percent if 0 < device.sms_percent < 100 else None,
    )
