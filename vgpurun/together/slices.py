"""For how long a group has a GPU at a time beside other tenants: by its limit and its priority, as any other tenant.

The library decides that in each program (lib/src/scheduler/switch.c). The channels of a group's programs are all their
server's, whose keeper does it instead. The programs tell the others when they work (lib/src/tenants/presence.h).
"""

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun import abi
from vgpurun.host.channels import DEFAULT_SLICE_US
from vgpurun.limits import limits_file
from vgpurun.limits.policies import Priority
from vgpurun.limits.quota import Quota
from vgpurun.storage import state, tenants
from vgpurun.storage.shared_file import read_regular

_AT_ALL_US, _LEAST_US = 20000, 4000  # for 100 percent, and at the least: these four are the library's
_BESIDE_HIGHER_US, _BESIDE_HIGHER_OF_SEVERAL_US = 100, 1000
_LASTS_S = 0.8  # of a tenant's work, after it was seen last
_DEVICE_BYTES = abi.PRESENCE_BYTES // abi.MAX_DEVICES
_TIME_BYTES = 8


def slice_us(own: Quota, others: Sequence[Quota]) -> int:
    """Return it, in microseconds. `others` are at work on the GPU."""
    are_higher = [each.priority.value < own.priority.value for each in others]
    if any(are_higher):
        return _BESIDE_HIGHER_US if all(are_higher) else _BESIDE_HIGHER_OF_SEVERAL_US
    if own.sm_percent is None and not others:
        return DEFAULT_SLICE_US
    return max((own.sm_percent or abi.NO_SM_LIMIT) * _AT_ALL_US // 100, _LEAST_US)


def whole_of(quotas: Iterable[Quota]) -> Quota:
    """Return the limit and the priority of a group, the least limit and the highest priority of these."""
    found = list(quotas)
    percents = [each.sm_percent for each in found if each.sm_percent is not None]
    priority = min((each.priority for each in found), key=lambda each: each.value, default=Priority.HIGH)
    return Quota(sm_percent=min(percents, default=None), priority=priority)


def at_work(slice_folder: Path | None, uuids: Collection[str]) -> tuple[list[Quota], list[Quota]]:
    """Return what members of a group, and what other tenants, may have that work on these GPUs now. Raises nothing.

    Those of a slice are one tenant, and not among either.
    """
    members: list[Quota] = []
    others: list[Quota] = []
    own = tenants.folder_of(slice_folder).name if slice_folder else ""
    with suppress(OSError), os.scandir(abi.LOCK_DIR) as folders:
        for each in folders:
            if not each.name.startswith(".") and each.name != own:
                with suppress(OSError):  # it has gone, or is none
                    found = _at_work(Path(each.path), uuids)
                    is_member = not own and bool(found) and _is_in_no_slice(Path(each.path), found[0])
                    (members if is_member else others).extend(found)
    return members, others


def _is_in_no_slice(tenant: Path, quota: Quota) -> bool:
    """Whether a tenant is of this user's that work at the same time without a slice. Raises OSError."""
    folder = tenants.state_folder_of(tenant) if quota.together else None
    return folder is not None and folder.parent.name == state.CONTAINERS


def _at_work(tenant: Path, uuids: Collection[str]) -> list[Quota]:
    """Raises OSError. Folders of programs that were killed stay, many of them: the time of the file tells at once."""
    presence = tenant / abi.PRESENCE_NAME
    if abs(time.time() - presence.lstat().st_mtime) > _LASTS_S:
        return []
    times = read_regular(presence, abi.PRESENCE_BYTES) or b""
    devices = enumerate(limits_file.read_limits(tenant / tenants.LIMITS) or ())
    return [quota for number, (uuid, quota) in devices if uuid in uuids and _is_recent(times, number)]


def _is_recent(times: bytes, device: int) -> bool:
    """Whether a process of the tenant was at work on a device lately: any number may stand there."""
    of_device = times[device * _DEVICE_BYTES : (device + 1) * _DEVICE_BYTES]
    now_s = time.monotonic()
    return any(
        abs(now_s - int.from_bytes(of_device[at : at + _TIME_BYTES], "little", signed=True) / 1e9) < _LASTS_S
        for at in range(0, len(of_device), _TIME_BYTES)
    )
