"""Docker's own options, in Docker's value syntax: parsed and checked before anything starts.

Every parser raises OptionError, whose message names the option and shows what is accepted.
"""

import csv
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vgpurun.errors import OptionError

MountType = Literal["bind", "volume", "tmpfs"]

_MOUNT_KEYS = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}
_MOUNT_OPTIONS: dict[str, MountType] = {
    "bind-propagation": "bind",
    "volume-nocopy": "volume",
    "volume-label": "volume",
    "volume-driver": "volume",
    "volume-opt": "volume",
    "tmpfs-size": "tmpfs",
    "tmpfs-mode": "tmpfs",
}
_VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", re.ASCII)
_CONTAINER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", re.ASCII)
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgtp]?)i?b?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Volume:
    """One -v. Without a source it is an anonymous volume; a source that is no absolute path names a volume."""

    source: str | None
    target: str
    mode: str = ""

    @property
    def read_only(self) -> bool:
        """Whether the container may only read it."""
        return "ro" in self.mode.split(",")

    def __str__(self) -> str:
        return ":".join(part for part in (self.source, self.target, self.mode) if part)


@dataclass(frozen=True)
class Mount:
    """One --mount, or a file or folder that vgpurun itself brings. `options` are --mount's further keys and values."""

    source: str | None
    target: str
    read_only: bool = True
    type: MountType = "bind"
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ContainerOptions:
    """What `docker run` takes and vgpurun passes on."""

    image: str
    command: tuple[str, ...] = ()
    entrypoint: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    mounts: tuple[Mount, ...] = ()
    working_dir: str | None = None
    user: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    network: str | None = None
    ipc: str | None = None
    shm_size_bytes: int | None = None
    remove: bool = False
    detach: bool = False
    interactive: bool = False
    tty: bool = False


def parse_volume(text: str) -> Volume:
    """Read a -v: `TARGET`, `SOURCE:TARGET` or `SOURCE:TARGET:MODE`."""
    parts = text.split(":")
    if len(parts) > 3 or not all(parts):
        raise OptionError(f"-v '{text}' is not SOURCE:TARGET or SOURCE:TARGET:MODE (mode e.g. ro)")
    source = None if len(parts) == 1 else parts[0]
    target, mode = parts[min(1, len(parts) - 1)], parts[2] if len(parts) == 3 else ""
    if not target.startswith("/"):
        raise OptionError(f"-v '{text}': the target '{target}' must be an absolute path in the container")
    if source is None or source.startswith("/"):
        return Volume(source, target, mode)
    if source.startswith("."):
        return Volume(os.path.abspath(source), target, mode)  # noqa: PTH100 (as docker: no link is resolved)
    if not _VOLUME_NAME.fullmatch(source):
        raise OptionError(f"-v '{text}': '{source}' is neither a path (begin it with / or ./) nor a volume's name")
    return Volume(source, target, mode)


def parse_mount(text: str) -> Mount:
    """Read a --mount: `type=bind,source=/data,target=/data,readonly` and so on."""
    values: dict[str, str] = {}
    options: list[tuple[str, str]] = []
    for part in next(csv.reader([text]), []):
        key, equals, value = part.partition("=")
        key = _MOUNT_KEYS.get(key.strip().lower(), key.strip().lower())
        if key == "readonly":
            values[key] = value if equals else "true"
        elif key in ("type", "source", "target"):
            values[key] = value
        elif key in _MOUNT_OPTIONS:
            options.append((key, value if equals else "true"))
        else:
            known = ", ".join(("type", "source", "target", "readonly", *_MOUNT_OPTIONS))
            raise OptionError(f"--mount '{text}': unknown key '{key}'; known are {known}")
    mount = _checked_mount(text, values, options)
    _check_source(text, mount)
    return mount


def _checked_mount(text: str, values: Mapping[str, str], options: list[tuple[str, str]]) -> Mount:
    types: dict[str, MountType] = {"bind": "bind", "volume": "volume", "tmpfs": "tmpfs"}
    mount_type = types.get(values.get("type", "volume"))
    if mount_type is None:
        raise OptionError(f"--mount '{text}': type '{values['type']}' is not one of {', '.join(types)}")
    if not values.get("target", "").startswith("/"):
        raise OptionError(f"--mount '{text}' needs target=/an/absolute/path")
    for key, value in options:
        if _MOUNT_OPTIONS[key] != mount_type:
            raise OptionError(f"--mount '{text}': {key} is not for type={mount_type}")
        if key == "tmpfs-size":
            parse_bytes(value, "--mount tmpfs-size")
        if key == "tmpfs-mode" and not re.fullmatch(r"[0-7]{1,4}", value, re.ASCII):
            raise OptionError(f"--mount '{text}': tmpfs-mode '{value}' is not an octal mode such as 1777")
    read_only = values.get("readonly", "false").lower()
    if read_only not in ("true", "false", "1", "0"):
        raise OptionError(f"--mount '{text}': readonly '{read_only}' is neither true nor false")
    return Mount(values.get("source"), values["target"], read_only in ("true", "1"), mount_type, tuple(options))


def _check_source(text: str, mount: Mount) -> None:
    if mount.type == "bind" and not (mount.source or "").startswith("/"):
        raise OptionError(f"--mount '{text}': a bind needs source=/an/absolute/path")
    if mount.type == "tmpfs" and mount.source:
        raise OptionError(f"--mount '{text}': a tmpfs has no source")


def parse_environment(
    arguments: Iterable[str], env_files: Iterable[str], host: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Read all --env-file, then all -e, the later winning. `NAME` alone takes this process's value, if it has one."""
    host = os.environ if host is None else host
    entries = [entry for file in env_files for entry in _read_env_file(file)]
    for argument in arguments:
        if not argument or argument.startswith("="):
            raise OptionError(f"-e '{argument}' has no name; write NAME=VALUE, or NAME to pass on this shell's value")
        entries.append(argument)
    environment: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if equals:
            environment[name] = value
        elif name in host:
            environment[name] = host[name]
    return environment


def _read_env_file(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(f"--env-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"--env-file {path} is not UTF-8 text") from None
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.lstrip()
        if not entry or entry.startswith("#"):
            continue
        name = entry.partition("=")[0]
        if not name or re.search(r"\s", name):
            raise OptionError(f"--env-file {path}, line {number}: '{name}' is not a variable's name")
        entries.append(entry)
    return entries


def parse_labels(arguments: Iterable[str]) -> dict[str, str]:
    """Read all --label, `NAME=VALUE` or `NAME`."""
    labels: dict[str, str] = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not name:
            raise OptionError(f"--label '{argument}' has no name; write NAME=VALUE")
        if name.startswith("vgpurun."):
            raise OptionError(f"--label '{argument}': names that begin with vgpurun. are vgpurun's own; choose another")
        labels[name] = value
    return labels


def parse_bytes(text: str, option: str) -> int:
    """Read a size as docker does: `64m`, `1g`, plain bytes. Returns bytes."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{option} '{text}' is not a size; use e.g. 64m or 1g")
    number, unit = match.groups()
    return int(float(number) * 1024 ** ("bkmgtp".index(unit.lower()) if unit else 0))


def check_name(name: str) -> str:
    """Return the name of a container, or raise OptionError."""
    if not _CONTAINER_NAME.fullmatch(name):
        raise OptionError(f"--name '{name}' is no container name; use letters, digits, '_', '.' and '-', two at least")
    return name
