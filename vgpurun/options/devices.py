"""Devices and their throttles in the syntax of docker run. Every parser raises ValueError with docker's own words."""

import posixpath
import re
from typing import Any, NamedTuple

from vgpurun.options.values import fields, positive, size

# vendor/class=name, as in the Container Device Interface's specification.
_CDI_NAME = r"(?a)[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w.-]*[A-Za-z0-9]=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?"
_CGROUP_RULE = r"(?a)[acb] ([0-9]+|\*):([0-9]+|\*) [rwm]{1,3}"
_GPU_VENDOR = "nvidia.com/gpu="
_GPU_DRIVERS = ("", "nvidia", "nvidia.runtime-hook", "nvidia.cdi", "cdi")  # docker 29's names


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


class GpuRequest(NamedTuple):
    """A value of --gpus: the part that chooses GPUs, the driver's capabilities, and options for the driver."""

    choice: str
    capabilities: str
    options: str


def gpus(text: str) -> GpuRequest:
    """Read docker's --gpus. The quotes that docker wants around a list of devices may be left out."""
    given: dict[str, str] = {}
    bare: list[str] = []
    for field in fields(text):
        key, equals, value = field.partition("=")
        if not equals and "device" in given:
            given["device"] += f",{field}"
        elif key in given or field in bare or (bare and key == "count"):
            raise ValueError(f"gpu request key '{key}' can be specified only once")
        elif not equals:
            bare.append(field)
        elif key in ("driver", "count", "device", "capabilities", "options"):
            given[key] = value
        else:
            raise ValueError(f"unexpected key '{key}' in '{field}'")
    if given.get("driver", "") not in _GPU_DRIVERS:
        raise ValueError(f"no driver '{given['driver']}' is known for GPUs; leave it out")
    return GpuRequest(_choice(given, bare), given.get("capabilities", ""), given.get("options", ""))


def _choice(given: dict[str, str], bare: list[str]) -> str:
    """Return what `--gpus` of all verbs takes. A negative count is all GPUs, as for the engine."""
    count = _count(bare[0] if len(bare) == 1 else given.get("count", ""))
    if "count" in given and not count:
        raise ValueError(f'invalid count ({given["count"]}): value must be either "all" or an integer')
    if "device" not in given:
        return count or ",".join(bare) or "1"
    if bare or count not in ("", "0"):
        raise ValueError("cannot set both Count and DeviceIDs on device request; leave the count out")
    names = [name.removeprefix(_GPU_VENDOR) for name in given["device"].split(",")]
    return "all" if "all" in names else f"device={','.join(names)}"


def _count(text: str) -> str:
    """Return `all` or a number, or nothing where it is no count."""
    if text == "all" or re.fullmatch("-0*[1-9][0-9]*", text):
        return "all"
    return str(int(text)) if re.fullmatch("[+-]?[0-9]+", text) else ""


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
