"""Volumes and mounts in the syntax of docker run. Every parser raises ValueError."""

import os
import re
from collections.abc import Mapping

from vgpurun.options.model import Mount, MountType, Volume
from vgpurun.options.values import size

_TYPES: dict[str, MountType] = {"bind": "bind", "volume": "volume", "tmpfs": "tmpfs", "image": "image"}
_KEYS = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}
_OPTIONS: dict[str, MountType | None] = {
    "bind-propagation": "bind",
    "bind-recursive": "bind",
    "volume-nocopy": "volume",
    "volume-label": "volume",
    "volume-driver": "volume",
    "volume-opt": "volume",
    "volume-subpath": "volume",
    "tmpfs-size": "tmpfs",
    "tmpfs-mode": "tmpfs",
    "image-subpath": "image",
    "consistency": None,  # of any type; it means something on a Mac only
}
_WITHOUT_VALUE = ("readonly", "volume-nocopy")
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_RECURSIVE = ("enabled", "disabled", "writable", "readonly")
_VOLUME_NAME = r"(?a)[a-zA-Z0-9][a-zA-Z0-9_.-]*"


def volume(text: str) -> Volume:
    """Read a -v: `TARGET`, `SOURCE:TARGET` or `SOURCE:TARGET:MODE`."""
    if not text:
        raise ValueError("invalid empty volume spec")
    parts = text.split(":")
    if not all(parts):
        raise ValueError(f"invalid spec: {text}: empty section between colons")
    if len(parts) > 3:
        raise ValueError(f"invalid spec: {text}: write SOURCE:TARGET or SOURCE:TARGET:MODE (mode e.g. ro)")
    source = None if len(parts) == 1 else parts[0]
    target, mode = parts[min(1, len(parts) - 1)], parts[2] if len(parts) == 3 else ""
    if not target.startswith("/"):
        raise ValueError(f"the target '{target}' must be an absolute path in the container")
    if source is None or source.startswith("/"):
        return Volume(source, target, mode)
    if source.startswith("."):
        return Volume(_absolute(source), target, mode)
    if not re.fullmatch(_VOLUME_NAME, source):
        raise ValueError(f"'{source}' is neither a path (begin it with / or ./) nor a volume's name")
    return Volume(source, target, mode)


def tmpfs(text: str) -> tuple[str, str]:
    """Read a --tmpfs: `TARGET` or `TARGET:OPTIONS`."""
    target, _, options = text.partition(":")
    if not target.startswith("/"):
        raise ValueError(f"the target '{target}' must be an absolute path in the container")
    return target, options


def mount(text: str) -> Mount:
    """Read a --mount: `type=bind,source=/data,target=/data,readonly` and so on."""
    import csv  # slow to import, and seldom needed

    values: dict[str, str] = {}
    options: list[tuple[str, str]] = []
    for part in next(csv.reader([text]), []):
        key, equals, value = part.partition("=")
        key = _KEYS.get(key.strip().lower(), key.strip().lower())
        if not equals and key not in _WITHOUT_VALUE:
            raise ValueError(f"invalid field '{part}' must be a key=value pair")
        if key in _OPTIONS:
            options.append((key, value if equals else "true"))
        elif key in ("type", "source", "target", "readonly"):
            values[key] = value if equals else "true"
        else:
            known = ", ".join(("type", "source", "target", "readonly", *_OPTIONS))
            raise ValueError(f"unexpected key '{key}' in '{part}'; known are {known}")
    return _checked_mount(values, options)


def _checked_mount(values: Mapping[str, str], options: list[tuple[str, str]]) -> Mount:
    kind = _TYPES.get(values.get("type", "volume").lower())
    if kind is None:
        raise ValueError(f"type '{values['type']}' is not one of {', '.join(_TYPES)}")
    if not values.get("target"):
        raise ValueError("target is required")
    if not values["target"].startswith("/"):
        raise ValueError(f"the target '{values['target']}' must be an absolute path in the container")
    for key, value in options:
        _check_option(kind, key, value)
    read_only = values.get("readonly", "false").lower()
    if read_only not in (*_TRUE, *_FALSE):
        raise ValueError(f"invalid value for readonly: {values['readonly']}; it is true or false")
    source = _source(kind, values.get("source"))
    return Mount(source, values["target"], read_only in _TRUE, kind, tuple(options))


def _check_option(kind: MountType, key: str, value: str) -> None:
    if _OPTIONS[key] not in (kind, None):
        raise ValueError(f"cannot mix '{_OPTIONS[key]}-*' options with mount type '{kind}'")
    if key == "tmpfs-size":
        size(value)
    if key == "tmpfs-mode" and not re.fullmatch(r"[0-7]{1,4}", value, re.ASCII):
        raise ValueError(f"invalid value for tmpfs-mode: {value}; an octal mode is needed, such as 1777")
    if key == "volume-nocopy" and value.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"invalid value for volume-nocopy: {value}; it is true or false")
    if key == "bind-recursive" and value not in _RECURSIVE:
        raise ValueError(f"invalid value for bind-recursive: {value} (must be one of {', '.join(_RECURSIVE)})")


def _source(kind: MountType, source: str | None) -> str | None:
    if kind == "bind":
        if (source or "").startswith("."):
            source = _absolute(source or "")
        if not (source or "").startswith("/"):
            raise ValueError("a bind needs source=/an/absolute/path")
    if kind == "tmpfs" and source:
        raise ValueError("a tmpfs has no source")
    return source


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 (as docker: no link is resolved)
