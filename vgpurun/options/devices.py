"""Devices and their throttles in the syntax of docker run. Every parser raises ValueError with docker's own words."""

import posixpath
import re
from typing import Any

from vgpurun.options.values import fields, positive, size

# vendor/class=name, as in the Container Device Interface's specification.
_CDI_NAME = r"(?a)[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w.-]*[A-Za-z0-9]=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?"
_CGROUP_RULE = r"(?a)[acb] ([0-9]+|\*):([0-9]+|\*) [rwm]{1,3}"
_GPU_VENDOR = "nvidia.com/gpu="


def device(text: str) -> dict[str, str] | str:
    """Read `HOST[:CONTAINER][:PERMISSIONS]`; returns a DeviceMapping of the API, or the name of a CDI device."""
    if text.startswith(_GPU_VENDOR):
        raise ValueError("a GPU comes with --gpus, so that its limits hold")
    if re.fullmatch(_CDI_NAME, text):
        return text
    parts = text.split(":")
    if len(parts) > 3 or not parts[0]:
        raise ValueError(f"bad format for path: {text}")
    permissions = "rwm"
    if len(parts) > 1 and _are_permissions(parts[-1]):
        permissions = parts.pop()
    elif len(parts) == 3:
        raise ValueError(f"bad mode specified: {parts[-1]}; it is made of r, w and m")
    if not parts[-1].startswith("/"):
        raise ValueError(f"{parts[-1]} is not an absolute path")
    if text.count(":") < 2:
        parts[-1] = posixpath.normpath(parts[-1].replace("//", "/"))
    return {"PathOnHost": parts[0], "PathInContainer": parts[-1], "CgroupPermissions": permissions}


def gpus(text: str) -> tuple[str, str]:
    """Read docker's --gpus; returns the part that chooses GPUs, and the driver's capabilities that it asks for."""
    choice, capabilities = [], ""
    for field in fields(text):
        key, _, value = field.partition("=")
        if key == "capabilities":
            capabilities = value
        elif key != "driver":
            choice.append(field)
        elif value not in ("", "nvidia"):
            raise ValueError(f"no driver '{value}' is known for GPUs; leave it out")
    return ",".join(choice) or "1", capabilities


def _are_permissions(text: str) -> bool:
    return bool(text) and set(text) <= set("rwm") and len(set(text)) == len(text)


def cgroup_rule(text: str) -> str:
    """Read a rule of the device cgroup."""
    if not re.fullmatch(_CGROUP_RULE, text):
        raise ValueError(f"invalid device cgroup format '{text}'; write e.g. c 42:* rmw")
    return text


def weight_of_device(text: str) -> dict[str, Any]:
    """Read `PATH:WEIGHT`. Returns a WeightDevice of the API."""
    path, value = _path_and_value(text)
    weight = positive(value) if value.isdecimal() else -1
    if weight and not 10 <= weight <= 1000:
        raise ValueError(f"invalid weight for device: {text}; it is 10 to 1000, or 0")
    return {"Path": path, "Weight": weight}


def bytes_per_second(text: str) -> dict[str, Any]:
    """Read `PATH:SIZE`. Returns a ThrottleDevice of the API."""
    path, value = _path_and_value(text)
    try:
        return {"Path": path, "Rate": size(value)}
    except ValueError:
        raise ValueError(
            f"invalid rate for device: {text}; write PATH:NUMBER[UNIT], with the unit kb, mb or gb"
        ) from None


def operations_per_second(text: str) -> dict[str, Any]:
    """Read `PATH:NUMBER`. Returns a ThrottleDevice of the API."""
    path, value = _path_and_value(text)
    try:
        return {"Path": path, "Rate": positive(value)}
    except ValueError:
        raise ValueError(f"invalid rate for device: {text}; write PATH:NUMBER") from None


def _path_and_value(text: str) -> tuple[str, str]:
    path, colon, value = text.partition(":")
    if not colon:
        raise ValueError(f"bad format: {text}; write /dev/NAME:VALUE")
    if not path.startswith("/dev/"):
        raise ValueError(f"bad format for device path: {text}; write /dev/NAME:VALUE")
    return path, value
