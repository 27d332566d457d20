"""Networks and ports in the syntax of docker run. Every parser raises ValueError with docker's own words."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vgpurun.options.values import decimal, fields, is_ip_address, mac_address, pair

PortBindings = dict[str, list[dict[str, str]]]

_LONG = r"(?a)\w=\w"  # the syntax with settings
_PREDEFINED = ("", "default", "bridge", "host", "none")
_PROTOCOLS = ("tcp", "udp", "sctp")
_RANGE = r"(?a)([0-9]+)(?:-([0-9]+))?"


@dataclass(frozen=True)
class Network:
    """A --network: what the container is connected to, and how."""

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
    if not re.search(_LONG, text):
        return Network(text)
    values: dict[str, list[str]] = {}
    for field in fields(text):
        key, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"invalid field {field}; write KEY=VALUE")
        if key.strip().lower() not in _SETTINGS:
            raise ValueError(f"invalid field key {key.strip()}; known are {', '.join(_SETTINGS)}")
        values.setdefault(key.strip().lower(), []).append(value.strip())
    if not values.get("name", [""])[-1]:
        raise ValueError("network name/id is not specified")
    return Network(**{_SETTINGS[key][0]: _SETTINGS[key][1](given) for key, given in values.items()})


def _last(values: list[str]) -> str:
    return values[-1]


def _driver_option(text: str) -> tuple[str, str]:
    name, value = pair(text)
    if "=" not in text or not name:
        raise ValueError("invalid key value pair format in driver options; write driver-opt=NAME=VALUE")
    return name.strip(), value.strip()


def _priority(values: list[str]) -> int:
    try:
        return decimal(values[-1])
    except ValueError:
        raise ValueError(f"invalid gw-priority ({values[-1]}): a whole number is needed") from None


_SETTINGS: dict[str, tuple[str, Callable[[list[str]], Any]]] = {
    "name": ("name", _last),
    "alias": ("aliases", tuple),
    "ip": ("ipv4_address", _last),
    "ip6": ("ipv6_address", _last),
    "mac-address": ("mac_address", lambda values: mac_address(values[-1])),
    "link-local-ip": ("link_local_addresses", tuple),
    "driver-opt": ("driver_options", lambda values: tuple(map(_driver_option, values))),
    "gw-priority": ("gateway_priority", _priority),
}


def join_networks(networks: Iterable[Network], of_options: Mapping[str, Any]) -> tuple[Network, ...]:
    """Return the networks, the first with what options of their own say (--ip, --network-alias and so on)."""
    first, *others = tuple(networks) or (Network("default"),)
    for setting, (option, words) in _BY_OPTION.items():
        if of_options.get(setting) and getattr(first, setting):
            raise ValueError(f"conflicting options: cannot specify both {option} and per-network {words}")
    given = {setting: value for setting, value in of_options.items() if value}
    if not first.is_user_defined:
        given.pop("links", None)  # to the engine's own network they are no setting of its endpoint
    joined = (replace(first, **given), *others)
    names = [each.name for each in joined]
    if not all(name.strip() for name in names):
        raise ValueError("no name set for network")
    if any(each.aliases and not each.is_user_defined for each in joined):
        raise ValueError("network-scoped aliases are only supported for user-defined networks")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f'network "{twice}" is specified multiple times')
    if len({each.is_user_defined for each in joined}) > 1:
        raise ValueError("conflicting options: cannot attach both user-defined and non-user-defined network-modes")
    return joined


_BY_OPTION = {
    "aliases": ("--network-alias", "alias"),
    "ipv4_address": ("--ip", "IPv4 address"),
    "ipv6_address": ("--ip6", "IPv6 address"),
    "mac_address": ("--mac-address", "MAC address"),
    "link_local_addresses": ("--link-local-ip", "link-local IP addresses"),
}


def published_port(text: str) -> PortBindings:
    """Read a -p: `[ADDRESS:][PORT:]PORT[/PROTOCOL]`, with ranges, or `published=...,target=...,protocol=...`."""
    text = _short_port(text) if "=" in text else text
    address, host, container, protocol = _port_parts(text)
    if not container:
        raise ValueError(f"no port specified: {text}<empty>")
    inside = _port_range(container, "invalid containerPort")
    outside = _port_range(host, "invalid hostPort") if host else []
    if outside and len(outside) != len(inside) and len(inside) != 1:
        raise ValueError(f"invalid ranges specified for container and host Ports: {container} and {host}")
    if len(inside) == 1 and len(outside) > 1:  # any port of the host's range
        return {f"{inside[0]}/{protocol}": [{"HostIp": address, "HostPort": f"{outside[0]}-{outside[-1]}"}]}
    return {
        f"{port}/{protocol}": [{"HostIp": address, "HostPort": str(outside[number]) if outside else ""}]
        for number, port in enumerate(inside)
    }


def _port_parts(text: str) -> tuple[str, str, str, str]:
    """Return the host's address and ports, the container's ports, and the protocol."""
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


def _short_port(text: str) -> str:
    """Return a -p with keys as one without; unknown ones mean nothing, as to docker."""
    values = {"protocol": "tcp"}
    for field in text.split(","):
        key, equals, value = field.partition("=")
        if not equals or not key:
            raise ValueError(f"invalid publish opts format (should be name=value but got '{field}')")
        values[key] = value
    return f"{values.get('published', '')}:{values.get('target', '')}/{values['protocol']}"


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
