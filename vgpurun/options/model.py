"""The options of `docker run`, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vgpurun.options.network import Network

MountType = str  # bind, volume, tmpfs, image, or what else the engine may know


@dataclass(frozen=True)
class Volume:
    """A -v. Without a source it is an anonymous volume; a source that is no absolute path names a volume."""

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
    """A --mount, or a file or folder that vgpurun itself brings. `options` are --mount's further keys and values."""

    source: str | None
    target: str
    read_only: bool = True
    type: MountType = "bind"
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ContainerOptions:
    """The options of `docker run` that vgpurun passes on.

    What vgpurun itself looks at has a field of its own. `fields` has the rest in the words of the engine's API, e.g.
    {"HostConfig.CapAdd": ["CAP_SYS_PTRACE"]}. A variable whose value is None is taken away from the image's.
    """

    image: str
    command: tuple[str, ...] = ()
    entrypoint: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[Network, ...] = (Network("default"),)
    cdi_devices: tuple[str, ...] = ()
    runtime: str | None = None
    platform: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    streams: tuple[str, ...] = ("stdout", "stderr")
    remove: bool = False
    detach: bool = False
    interactive: bool = False
    tty: bool = False
    relays_signals: bool = True
    detach_keys: str | None = None
    cidfile: str | None = None
    warnings: tuple[str, ...] = ()

    def environment_over(self, of_image: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that the command will have: the image's, and the user's over them."""
        joined = {**of_image, **self.environment}
        return {name: value for name, value in joined.items() if value is not None}

    @property
    def takes_input(self) -> bool:
        """Whether this process's standard input is the container's."""
        return "stdin" in self.streams
