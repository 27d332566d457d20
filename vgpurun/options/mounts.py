"""Volumes and mounts in the syntax of docker run. Every parser raises ValueError.

Any other fault of a mount the engine reports, in the same words as to docker.
"""

import os
import re
from collections.abc import Mapping

from vgpurun.options.model import Mount, MountType, Volume
from vgpurun.options.values import fields, size

_KEYS = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}
_OPTIONS: dict[str, MountType] = {
    "bind-propagation": "bind",
    "bind-nonrecursive": "bind",
    "bind-recursive": "bind",
    "bind-create-src": "bind",
    "volume-nocopy": "volume",
    "volume-label": "volume",
    "volume-driver": "volume",
    "volume-opt": "volume",
    "volume-subpath": "volume",
    "tmpfs-size": "tmpfs",
    "tmpfs-mode": "tmpfs",
    "image-subpath": "image",
    "consistency": "",  # any type; only a Mac uses it
}
_SWITCHES = ("readonly", "volume-nocopy", "bind-nonrecursive", "bind-create-src")
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_RECURSIVE = ("enabled", "disabled", "writable", "readonly")


def volume(text: str) -> Volume:
    """Read a -v: `TARGET`, `SOURCE:TARGET` or `SOURCE:TARGET:MODE`."""
    if not text:
        raise ValueError("invalid empty volume spec")
    parts = text.split(":") if len(text) > 2 else [text]  # so short a text has no room for a source
    if not all(parts):
        raise ValueError(f"invalid spec: {text}: empty section between colons")
    if len(parts) > 3:
        raise ValueError(f"invalid spec: {text}: too many colons; write SOURCE:TARGET or SOURCE:TARGET:MODE")
    if len(parts) == 1:
        return Volume(None, _target(text))
    return Volume(_absolute(parts[0]), _target(parts[1]), *parts[2:])


def tmpfs(text: str) -> tuple[str, str]:
    """Read a --tmpfs: `TARGET` or `TARGET:OPTIONS`."""
    target, _, options = text.partition(":")
    return _target(target), options


def mount(text: str) -> Mount:
    """Read a --mount: `type=bind,source=/data,target=/data,readonly` and so on."""
    values: dict[str, str] = {}
    options: list[tuple[str, str]] = []
    for field in fields(text):
        given, equals, value = field.partition("=")
        key = _KEYS.get(given.lower(), given.lower())
        if not equals and key not in _SWITCHES:
            raise ValueError(f"invalid field '{field}' must be a key=value pair")
        if key in _OPTIONS:
            options.append((key, _checked(given.lower(), value if equals else "true")))
        elif key in ("type", "source", "target", "readonly"):
            values[key] = _checked(given.lower(), value if equals else "true")
        else:
            known = ", ".join(("type", "source", "target", "readonly", *_OPTIONS))
            raise ValueError(f"unexpected key '{given}' in '{field}'; known are {known}")
    return _checked_mount(values, options)


def _checked(key: str, value: str) -> str:
    """Return the value of a key in the spelling in which it counts."""
    if key in (*_SWITCHES, "ro"):
        if value.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(f"invalid value for {key}: {value}; it is true or false")
        return "true" if value.lower() in _TRUE else "false"
    if key == "bind-recursive" and value not in _RECURSIVE:
        accepted = '"enabled", "disabled", "writable", or "readonly"'
        raise ValueError(f"invalid value for bind-recursive: {value} (must be {accepted})")
    if key == "tmpfs-mode" and not re.fullmatch(r"(?a)[0-7]{1,10}", value):
        raise ValueError(f"invalid value for tmpfs-mode: {value}; an octal mode is needed, such as 1777")
    if key == "tmpfs-size":
        try:
            size(value)
        except ValueError:
            raise ValueError(f"invalid value for tmpfs-size: {value}; use e.g. 64m or 1g") from None
    return value.lower() if key in ("type", "bind-propagation", "consistency") else value


def _checked_mount(values: Mapping[str, str], options: list[tuple[str, str]]) -> Mount:
    kind, is_read_only = values.get("type", "volume"), values.get("readonly") == "true"
    if not kind:
        raise ValueError("type is required")
    if not values.get("target"):
        raise ValueError("target is required")
    for key, _ in options:
        if _OPTIONS[key] not in (kind, ""):
            raise ValueError(f"cannot mix '{_OPTIONS[key]}-*' options with mount type '{kind}'")
    given = dict(options)
    recursive = given.get("bind-recursive", "")
    if recursive in ("writable", "readonly") and not is_read_only:
        raise ValueError(f"option 'bind-recursive={recursive}' requires 'readonly' to be specified in conjunction")
    if recursive == "readonly" and given.get("bind-propagation") != "rprivate":
        raise ValueError(
            "option 'bind-recursive=readonly' requires 'bind-propagation=rprivate' to be specified in conjunction"
        )
    source = values.get("source")
    return Mount(_absolute(source) if source else None, _target(values["target"]), is_read_only, kind, tuple(options))


def _target(path: str) -> str:
    """Return a path of the container. That it is absolute is the engine's to say, which a launch may wait for long."""
    if not path.startswith("/"):
        raise ValueError(f"invalid mount path: '{path}' mount path must be absolute")
    return path


def _absolute(path: str) -> str:
    """Return a path of this host that begins with a dot as an absolute one, without resolving links, as docker does."""
    return os.path.abspath(path) if path.startswith(".") else path  # noqa: PTH100
