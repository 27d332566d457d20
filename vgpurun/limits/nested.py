"""Shares within shares: a process that has limits gives a part of them to a child, which is charged at both.

A share is a folder with etc/limits and run/usage; one that is a part of another has that one's folder as `parent`, by
a link or, in a container, as mounts. Its limits file says that there is one, so that none can be lost.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vgpurun import abi
from vgpurun.errors import LimitError
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file, quota
from vgpurun.limits.model import DeviceQuota, Limits
from vgpurun.limits.oversubscription import OPTION
from vgpurun.limits.quota import Quota, show_size
from vgpurun.util.nofollow import opened_folder

PARENT = "parent"  # in a share's folder: the share that it is a part of
_OF_THE_OUTERMOST = {"sm_policy": "--sm-policy", "priority": "--priority", "oversubscribe": OPTION}


@dataclass(frozen=True)
class Share:
    """The limits of a process, by UUID, and the folder that they are in. `levels`: with those that it is a part of."""

    folder: Path
    quotas: tuple[tuple[str, Quota], ...]
    levels: int = 1


def own_share(environment: Mapping[str, str] | None = None) -> Share | None:
    """Return the share of a process with this environment (None: this one's), or None where no file limits it.

    Raises LimitError for one that cannot be read: such a process is granted nothing.
    """
    named = (os.environ if environment is None else environment).get(abi.ENV_LIMITS_FILE)
    if named:
        return share_of(Path(named).absolute().parent.parent)
    return share_of(Path(abi.CONTAINER_DIR)) if Path(abi.CONTAINER_LIMITS).exists() else None


def share_of(folder: Path) -> Share:
    """Return the share that a folder has. Raises LimitError."""
    levels, place = 1, folder
    try:
        quotas = limits_file.read_limits(folder / "etc" / "limits")
        while levels <= abi.MAX_LEVELS and limits_file.has_parent(place / "etc" / "limits"):
            levels, place = levels + 1, _parent_of(place)
    except OSError as error:
        raise LimitError(f"the limits of this share cannot be read: {error.filename}: {error.strerror}") from None
    if quotas is None:
        raise LimitError(f"{folder / 'etc' / 'limits'} is not a limits file of this version; start the share again")
    return Share(folder, tuple(quotas), levels)


def check_within(parent: Share, quotas: Sequence[tuple[str, Quota]]) -> None:
    """Raise LimitError for quotas that are more than the share has of these GPUs, or for a level too many."""
    if parent.levels >= abi.MAX_LEVELS:
        raise LimitError(
            f"this share is within {parent.levels - 1} others already, and {abi.MAX_LEVELS} levels are the most; run "
            "it one level further out"
        )
    theirs = dict(parent.quotas)
    for uuid, each in quotas:
        whole = theirs.get(uuid)
        if whole is None:
            raise LimitError(f"GPU {uuid} is not one of this share's; leave it out")
        whole_bytes = _visible_bytes(whole)
        if whole_bytes is not None and (each.memory_bytes or 0) > whole_bytes:
            raise LimitError(
                f"{show_size(each.memory_bytes or 0)} is more than this share has of GPU {uuid}, "
                f"{show_size(whole_bytes)}; lower it, or leave it out"
            )
        if (each.sm_percent or 0) > (whole.sm_percent or 100):
            raise LimitError(
                f"{each.sm_percent} % of the time of GPU {uuid} are more than this share's {whole.sm_percent} %; lower "
                "it, or leave it out"
            )


def quotas_within(parent: Share, gpus: Sequence[Gpu], limits: Limits) -> tuple[DeviceQuota, ...]:
    """Return what limits come to on these GPUs within a share, whose percentages are of the share. Raises LimitError.

    What is not given is the share's own.
    """
    for name, option in _OF_THE_OUTERMOST.items():
        if getattr(limits, name) is not None:
            raise LimitError(f"{option} can only be set on the outer share; leave it out")
    theirs = dict(parent.quotas)
    whole = [theirs.get(gpu.uuid, Quota()) for gpu in gpus]
    sizes = [_visible_bytes(each) or gpu.memory_bytes for gpu, each in zip(gpus, whole, strict=True)]
    seen = [replace(gpu, memory_bytes=size) for gpu, size in zip(gpus, sizes, strict=True)]
    asked = quota.resolve(seen, limits.memory, limits.sm, {}, range(len(gpus)))
    if any(each.guaranteed_bytes is not None for each in asked):
        raise LimitError("a guaranteed size can only be set on the outer share; give the maximum alone")
    found = [DeviceQuota(gpu, _part_of(each, of)) for gpu, each, of in zip(gpus, asked, whole, strict=True)]
    check_within(parent, [(each.gpu.uuid, each.quota) for each in found])
    return tuple(found)


def folders_above(folder: Path) -> list[Path]:
    """Return the folders of the shares that a share is a part of, the next one first, as far as they can be read."""
    above: list[Path] = []
    place = folder
    with suppress(OSError):
        while len(above) < abi.MAX_LEVELS and limits_file.has_parent(place / "etc" / "limits"):
            place = _parent_of(place)
            above.append(place)
    return above


def _parent_of(folder: Path) -> Path:
    """Return the folder of the share that a share says that it is a part of. Raises OSError."""
    try:
        with opened_folder(folder) as place:
            return Path(os.readlink(PARENT, dir_fd=place))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return folder / PARENT  # in a container


def _visible_bytes(whole: Quota) -> int | None:
    return whole.virtual_bytes or whole.memory_bytes


def _part_of(asked: Quota, whole: Quota) -> Quota:
    """Programs that work at the same time divide the SMs among them, and each has all the time of the whole."""
    if not whole.together:
        return Quota(asked.memory_bytes, _percent_of(asked.sm_percent, whole.sm_percent))
    sms_percent = _percent_of(asked.sm_percent, whole.sms_percent) or whole.sms_percent
    return Quota(asked.memory_bytes, together=True, sms_percent=sms_percent)


def _percent_of(percent: int | None, of: int | None) -> int | None:
    return None if percent is None else max(1, (percent * (of or 100) + 50) // 100)
