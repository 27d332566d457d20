"""Networks and ports in the syntax of docker run. Every parser raises ValueError with docker's own words."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from vgpurun.options.values import is_ip_address, mac_address, pair

PortBindings = dict[str, list[dict[str, str]]]

_PREDEFINED = ("", "default", "bridge", "host", "none")
_PROTOCOLS = ("tcp", "udp", "sctp")
_RANGE = r"(?a)([0-9]+)(?:-([0-9]+))?"


class Network(NamedTuple):
    """One --network: what the container is connected to, and how."""

    name: str
    aliases: tuple[str, ...] = ()
    ipv4_address: str = ""
    ipv6_address: str = ""
    link_local_addresses: tuple[str, ...] = ()
    mac_address: str = ""
    driver_options: tuple[tuple[str, str], ...] = ()
    gateway_priority: int = 0
    links: tuple[str, ...] = ()

    @property
    def is_user_defined(self) -> bool:
        """Whether somebody made this network; the engine's own know no aliases."""
        return self.name not in _PREDEFINED and not self.name.startswith("container:")


def network(text: str) -> Network:
    """Read a --network: a name, or `name=...,alias=...,ip=...`."""
    if not text:
        raise ValueError("no name set for network")
    if "=" not in text:
        return Network(text)
    import csv  # slow to import, and seldom needed

    values: dict[str, list[str]] = {}
    for field in next(csv.reader([text])):
        key, equals, value = field.partition("=")
        if not equals or key.strip().lower() not in _SETTINGS:
            raise ValueError(f"invalid field key {key}; known are name, {', '.join(list(_SETTINGS)[1:])}")
        values.setdefault(key.strip().lower(), []).append(value.strip())
    described = (
        Network(**{_SETTINGS[key][0]: _SETTINGS[key][1](given) for key, given in values.items()})
        if ("name" in values)
        else Network("")
    )
    if not described.name:
        raise ValueError("no name set for network")
    return described


def _last(values: list[str]) -> str:
    return values[-1]


_SETTINGS: dict[str, tuple[str, Callable[[list[str]], Any]]] = {
    "name": ("name", _last),
    "alias": ("aliases", tuple),
    "ip": ("ipv4_address", _last),
    "ip6": ("ipv6_address", _last),
    "mac-address": ("mac_address", lambda values: mac_address(values[-1])),
    "link-local-ip": ("link_local_addresses", tuple),
    "driver-opt": ("driver_options", lambda values: tuple(map(pair, values))),
    "gw-priority": ("gateway_priority", lambda values: int(values[-1])),
}


def join_networks(networks: Iterable[Network], of_options: Mapping[str, Any]) -> tuple[Network, ...]:
    """Return the networks, the first with what options of their own say (--ip, --network-alias and so on)."""
    first, *others = tuple(networks) or (Network("default"),)
    if of_options.get("aliases") and not first.is_user_defined:
        raise ValueError("network-scoped aliases are only supported for user-defined networks")
    for setting, value in of_options.items():
        if setting != "links" and value and getattr(first, setting):
            raise ValueError(f"conflicting options: {setting.replace('_', ' ')} is given by an option and in --network")
    given = {setting: value for setting, value in of_options.items() if value}
    if not first.is_user_defined:
        given.pop("links", None)
    joined = (first._replace(**given), *others)
    names = [each.name for each in joined]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f'network "{twice}" is specified multiple times')
    return joined


def published_port(text: str) -> PortBindings:
    """Read a -p: `[ADDRESS:][PORT:]PORT[/PROTOCOL]`, with ranges, or `published=...,target=...,protocol=...`."""
    address, host, container, protocol = _port_parts(text)
    inside = _port_range(container, "invalid containerPort")
    outside = _port_range(host, "invalid hostPort") if host else []
    if outside and len(outside) != len(inside) and len(inside) != 1:
        raise ValueError(f"invalid ranges specified for container and host Ports: {container} and {host}")
    if len(inside) == 1:  # any port of the host's range
        return {f"{inside[0]}/{protocol}": [{"HostIp": address, "HostPort": host}]}
    return {
        f"{port}/{protocol}": [{"HostIp": address, "HostPort": str(outside[number]) if outside else ""}]
        for number, port in enumerate(inside)
    }


def _port_parts(text: str) -> tuple[str, str, str, str]:
    """Return the host's address and ports, the container's ports, and the protocol."""
    if "=" in text:
        return _long_port_parts(text)
    rest, _, protocol = text.partition("/")
    protocol = protocol.lower() or "tcp"
    if protocol not in _PROTOCOLS:
        raise ValueError(f"invalid proto: {protocol}; known are {', '.join(_PROTOCOLS)}")
    head, _, container = rest.rpartition(":")
    address, _, host = head.rpartition(":")
    address = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    if address and not is_ip_address(address):
        raise ValueError(f"invalid IP address: {address}")
    return address, host, container, protocol


def _long_port_parts(text: str) -> tuple[str, str, str, str]:
    values = dict(pair(field) for field in text.split(","))
    if unknown := [key for key in values if key not in ("published", "target", "protocol", "mode")]:
        raise ValueError(f"invalid field key {unknown[0]}; known are target, published, protocol, mode")
    protocol = values.get("protocol", "tcp").lower()
    if protocol not in _PROTOCOLS:
        raise ValueError(f"invalid protocol value '{protocol}'; known are {', '.join(_PROTOCOLS)}")
    return "", values.get("published", ""), values.get("target", ""), protocol


def exposed_ports(text: str) -> dict[str, dict[str, str]]:
    """Read an --expose: `PORT[-PORT][/PROTOCOL]`."""
    if ":" in text:
        raise ValueError(f"invalid port format for --expose: {text}")
    ports, _, protocol = text.partition("/")
    fault = f"invalid range format for --expose: {text}, error: invalid range specified for port"
    return {f"{port}/{protocol or 'tcp'}": {} for port in _port_range(ports, fault)}


def _port_range(text: str, what: str) -> list[int]:
    match = re.fullmatch(_RANGE, text)
    ends = [int(end) for end in match.groups() if end] if match else []
    if not ends or ends[-1] > 65535 or ends[0] > ends[-1]:
        raise ValueError(f"{what}: {text}; a port is 0 to 65535, a range e.g. 8000-8005")
    return list(range(ends[0], ends[-1] + 1))
