"""Images committed from a container: what the launch had set in it is neither the image's nor the user's.

This version leaves nothing behind but where it must (plan.py says where); the version before left much.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from vgpurun import abi

_LIMIT_OF_DEVICE = rf"({abi.ENV_MEMORY_LIMIT}|{abi.ENV_SM_LIMIT})_[0-9]+"


def own_variables(of_image: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an image has of itself: without our paths, and without limits beside our usage file."""
    was_limited = of_image.get(abi.ENV_USAGE_FILE) == abi.CONTAINER_USAGE
    own = {}
    for name, value in of_image.items():
        if name == abi.ENV_LIMITS_TAKEN:
            continue
        if was_limited and re.fullmatch(_LIMIT_OF_DEVICE, name) and value.isdecimal():
            continue
        parts = value.split(":")
        kept = [part for part in parts if not PurePosixPath(part).is_relative_to(abi.CONTAINER_DIR)]
        if kept:
            own[name] = ":".join(kept)
    return own


def healing(of_image: Mapping[str, str]) -> dict[str, str | None]:
    """Return what has to be set for a container to have the image's own variables alone; None takes one away."""
    own = own_variables(of_image)
    return {name: own.get(name) for name, value in of_image.items() if own.get(name) != value}
