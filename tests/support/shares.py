"""Makes shares, as launches make them for what they start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import sizeof
from pathlib import Path

from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.nested import PARENT, Share, check_within
from vgpurun.limits.quota import Quota


def write_share(folder: Path, quotas: Sequence[tuple[str, Quota]], parent: Share | None) -> dict[str, str]:
    """Make a share in a folder of its own, a part of `parent` if there is one; return the variables that enter it.

    A device without a memory or compute limit has what the parent has.
    """
    if parent:
        check_within(parent, quotas)
    for name in ("etc", "run"):
        (folder / name).mkdir(parents=True)
    if parent:
        (folder / PARENT).symlink_to(parent.folder.absolute())
    usage = folder / "run" / "usage"
    with usage.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, sizeof(abi.Usage))
    usage.chmod(0o666)
    limits = folder / "etc" / "limits"
    limits.write_bytes(limits_file.limits_bytes(quotas, has_parent=parent is not None))
    return {abi.ENV_LIMITS_FILE: str(limits), abi.ENV_USAGE_FILE: str(usage)}
