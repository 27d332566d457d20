"""A container to be made, in the words of the engine's API: the same request that docker run sends."""

from collections.abc import Mapping
from typing import Any

from vgpurun.host.drivers import DeviceRequest
from vgpurun.options import ContainerOptions, Mount
from vgpurun.options.network import Network
from vgpurun.options.values import size

# Values that docker run sends for options that were not given, where leaving it out would show in `docker inspect`.
_UNSET: dict[str, Any] = {
    "HostConfig.RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "HostConfig.LogConfig": {"Type": "", "Config": {}},
    "HostConfig.MemorySwappiness": -1,
    "HostConfig.OomKillDisable": False,
    "HostConfig.Dns": [],
    "HostConfig.DnsOptions": [],
    "HostConfig.DnsSearch": [],
    "HostConfig.PortBindings": {},
    "HostConfig.Devices": [],
    "HostConfig.Ulimits": [],
    "HostConfig.BlkioWeightDevice": [],
    "HostConfig.BlkioDeviceReadBps": [],
    "HostConfig.BlkioDeviceWriteBps": [],
    "HostConfig.BlkioDeviceReadIOps": [],
    "HostConfig.BlkioDeviceWriteIOps": [],
}


def options_body(options: ContainerOptions, terminal_size: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return the request that docker run would send."""
    body: dict[str, Any] = {"HostConfig": {}}
    for path, value in {**_UNSET, **options.fields}.items():
        parent, _, name = path.rpartition(".")
        (body[parent] if parent else body)[name] = value
    body |= {
        "Image": options.image,
        "Cmd": list(options.command) or None,
        "Env": [name if value is None else f"{name}={value}" for name, value in options.environment.items()],
        "Labels": dict(options.labels),
        "Volumes": {volume.target: {} for volume in options.volumes if not volume.source},
        "Tty": options.tty,
        "OpenStdin": options.interactive,
        "StdinOnce": options.takes_input and options.interactive,
        **{f"Attach{name.capitalize()}": name in options.streams for name in ("stdin", "stdout", "stderr")},
        "NetworkingConfig": {"EndpointsConfig": _endpoints(options.networks)},
    }
    if options.entrypoint is not None:
        body["Entrypoint"] = [options.entrypoint]
    body["HostConfig"] |= {
        "AutoRemove": options.remove,
        "Binds": [str(volume) for volume in options.volumes if volume.source] or None,
        "NetworkMode": options.networks[0].name,
        "DeviceRequests": _cdi_requests(options.cdi_devices),
        "ConsoleSize": list(reversed(terminal_size or (0, 0))),
    }
    if options.mounts:
        body["HostConfig"]["Mounts"] = [mount_json(mount) for mount in options.mounts]
    if options.tmpfs:
        body["HostConfig"]["Tmpfs"] = dict(options.tmpfs)
    if options.runtime:
        body["HostConfig"]["Runtime"] = options.runtime
    return body


def _endpoints(networks: tuple[Network, ...]) -> dict[str, Any]:
    if networks[0].name.startswith("container:"):
        return {}
    return {network.name: endpoint_json(network) for network in networks}


def endpoint_json(network: Network) -> dict[str, Any]:
    """Return the settings of a network's endpoint, without what is not given."""
    addresses: dict[str, Any] = {
        "IPv4Address": network.ipv4_address,
        "IPv6Address": network.ipv6_address,
        "LinkLocalIPs": list(network.link_local_addresses),
    }
    settings: dict[str, Any] = {
        "IPAMConfig": {name: value for name, value in addresses.items() if value},
        "Aliases": list(network.aliases),
        "Links": list(network.links),
        "MacAddress": network.mac_address,
        "DriverOpts": dict(network.driver_options),
        "GwPriority": network.gateway_priority,
    }
    return {name: value for name, value in settings.items() if value}


def _cdi_requests(names: tuple[str, ...]) -> list[dict[str, Any]] | None:
    return [request_json(DeviceRequest(driver="cdi", device_ids=names))] if names else None


def request_json(request: DeviceRequest) -> dict[str, Any]:
    """Return a DeviceRequest of the API."""
    return {
        "Driver": request.driver,
        "Count": 0,
        "DeviceIDs": list(request.device_ids),
        "Capabilities": [list(request.capabilities)] if request.capabilities else None,
    }


def device_json(path: str) -> dict[str, str]:
    """Return a device that has the same path in the container, or HOST:CONTAINER[:PERMISSIONS]."""
    host, _, rest = path.partition(":")
    container, _, permissions = rest.partition(":")
    return {"PathOnHost": host, "PathInContainer": container or host, "CgroupPermissions": permissions or "rwm"}


def mount_json(mount: Mount) -> dict[str, Any]:
    """Return a Mount of the API. A bind's missing source is an error there, not a new folder."""
    described: dict[str, Any] = {"Type": mount.type, "Target": mount.target}
    if mount.source:
        described["Source"] = mount.source
    if mount.read_only:
        described["ReadOnly"] = True
    options = dict(mount.options)
    if "consistency" in options:
        described["Consistency"] = options["consistency"]
    of_type = {
        "BindOptions": _bind_options(options),
        "VolumeOptions": _volume_options(mount, options),
        "TmpfsOptions": _tmpfs_options(options),
        "ImageOptions": {"Subpath": options["image-subpath"]} if "image-subpath" in options else {},
    }
    return described | {name: settings for name, settings in of_type.items() if settings}


def _bind_options(options: Mapping[str, str]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if "bind-propagation" in options:
        described["Propagation"] = options["bind-propagation"]
    switches = {"bind-nonrecursive": "NonRecursive", "bind-create-src": "CreateMountpoint"}
    described |= {setting: True for key, setting in switches.items() if options.get(key) == "true"}
    recursive = {"disabled": "NonRecursive", "writable": "ReadOnlyNonRecursive", "readonly": "ReadOnlyForceRecursive"}
    if setting := recursive.get(options.get("bind-recursive", "")):
        described[setting] = True
    return described


def _volume_options(mount: Mount, options: Mapping[str, str]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if options.get("volume-nocopy") == "true":
        described["NoCopy"] = True
    if labels := _pairs(mount, "volume-label"):
        described["Labels"] = labels
    if "volume-subpath" in options:
        described["Subpath"] = options["volume-subpath"]
    driver_options = _pairs(mount, "volume-opt")
    if "volume-driver" in options or driver_options:
        driver = {"Name": options.get("volume-driver"), "Options": driver_options}
        described["DriverConfig"] = {name: value for name, value in driver.items() if value}
    return described


def _tmpfs_options(options: Mapping[str, str]) -> dict[str, int]:
    described = {}
    if "tmpfs-size" in options:
        described["SizeBytes"] = size(options["tmpfs-size"])
    if "tmpfs-mode" in options:
        described["Mode"] = int(options["tmpfs-mode"], 8)
    return described


def _pairs(mount: Mount, key: str) -> dict[str, str]:
    values = (value.partition("=") for name, value in mount.options if name == key)
    return {name: value for name, _, value in values if name}
