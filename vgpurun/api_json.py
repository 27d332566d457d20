"""Mounts and device requests in the words of the engine's API."""

from typing import Any

from vgpurun.drivers import DeviceRequest
from vgpurun.options import Mount, parse_bytes


def request_json(request: DeviceRequest) -> dict[str, Any]:
    """Return a DeviceRequest of the API."""
    return {
        "Driver": request.driver,
        "DeviceIDs": list(request.device_ids),
        "Capabilities": [list(request.capabilities)] if request.capabilities else None,
    }


def mount_json(mount: Mount) -> dict[str, Any]:
    """Return a Mount of the API. A bind's missing source is an error there, not a new folder."""
    described: dict[str, Any] = {"Type": mount.type, "Target": mount.target, "ReadOnly": mount.read_only}
    if mount.source:
        described["Source"] = mount.source
    options = dict(mount.options)
    if "bind-propagation" in options:
        described["BindOptions"] = {"Propagation": options["bind-propagation"]}
    if mount.type == "volume":
        described["VolumeOptions"] = _volume_options(mount, options)
    if mount.type == "tmpfs":
        described["TmpfsOptions"] = _tmpfs_options(options)
    return described


def _volume_options(mount: Mount, options: dict[str, str]) -> dict[str, Any]:
    described: dict[str, Any] = {"NoCopy": options.get("volume-nocopy", "false") != "false"}
    if labels := _pairs(mount, "volume-label"):
        described["Labels"] = labels
    driver_options = _pairs(mount, "volume-opt")
    if "volume-driver" in options or driver_options:
        described["DriverConfig"] = {"Name": options.get("volume-driver", "local"), "Options": driver_options}
    return described


def _tmpfs_options(options: dict[str, str]) -> dict[str, int]:
    described = {}
    if "tmpfs-size" in options:
        described["SizeBytes"] = parse_bytes(options["tmpfs-size"], "--mount tmpfs-size")
    if "tmpfs-mode" in options:
        described["Mode"] = int(options["tmpfs-mode"], 8)
    return described


def _pairs(mount: Mount, key: str) -> dict[str, str]:
    values = (value.partition("=") for name, value in mount.options if name == key)
    return {name: value for name, _, value in values}
