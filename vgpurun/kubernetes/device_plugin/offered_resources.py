"""The resources that an administrator offers to a cluster, from a YAML file:

memory: {name: alnair/vgpu-memory, unit: 1g}
compute: {name: alnair/vgpu-compute}
slices:                                            # each a resource vgpurun.io/slice-NAME
  small: {mem: 4g, sm: 20, count: 2}               # two on every GPU
  large: {mem: 20g, sm: 50, count: 1, gpus: [0]}   # by index (0:1 is a MIG instance) or UUID
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpurun.errors import ConfigError, LimitError
from vgpurun.limits.quota import parse_limit, parse_share

SLICE_PREFIX = "vgpurun.io/slice-"
# Kubernetes wants this of an extended resource: a domain that is not its own, and a name.
_RESOURCE = re.compile(r"(?!kubernetes\.io/)[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
_SLICE = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")


@dataclass(frozen=True)
class Shape:
    """A slice of fixed size: `count` of them on each of `gpus` (indexes or UUIDs; None: all)."""

    name: str
    memory_bytes: int
    sm_percent: int
    count: int = 1
    gpus: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OfferedResources:
    """The resources of a node, before it is known which GPUs it has. The defaults are Alnair's."""

    memory_name: str = "alnair/vgpu-memory"
    memory_unit_bytes: int = 1 << 30
    compute_name: str = "alnair/vgpu-compute"
    shapes: tuple[Shape, ...] = ()

    @staticmethod
    def slice_name(shape: Shape) -> str:
        """Return the name of a slice's resource."""
        return f"{SLICE_PREFIX}{shape.name}"


def read_offered_resources(path: Path | None) -> OfferedResources:
    """Return what a file says; without one, the defaults. Raises ConfigError."""
    if path is None:
        return OfferedResources()
    import yaml  # slow to import

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not YAML: {' '.join(str(error).split())}") from None
    try:
        return _offered_resources(_mapping(content or {}, "the file", ("memory", "compute", "slices")))
    except (ConfigError, LimitError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _offered_resources(content: Mapping[str, Any]) -> OfferedResources:
    memory = _mapping(content.get("memory") or {}, "memory", ("name", "unit"))
    compute = _mapping(content.get("compute") or {}, "compute", ("name",))
    slices = content.get("slices") or {}
    if not isinstance(slices, dict):
        raise ConfigError("slices: give each slice by its name, as in small: {mem: 4g, sm: 20}")
    offered = OfferedResources(
        _resource_name(memory.get("name", OfferedResources.memory_name)),
        parse_limit(str(memory.get("unit", "1g"))).bytes_on(0),
        _resource_name(compute.get("name", OfferedResources.compute_name)),
        tuple(_shape(name, each) for name, each in slices.items()),
    )
    if offered.memory_name == offered.compute_name:
        raise ConfigError(f"memory and compute are both called {offered.memory_name}; give them two names")
    return offered


def _shape(name: Any, content: Any) -> Shape:
    where = f"slices: {name}"
    if not _SLICE.fullmatch(str(name)):
        raise ConfigError(f"{where}: a slice's name is of a-z, 0-9 and '-'")
    given = _mapping(content, where, ("mem", "sm", "count", "gpus"))
    size = parse_limit(str(given.get("mem", "")))
    if size.is_percent:
        raise ConfigError(f"{where}: mem: a slice is of one size on every GPU; write e.g. 4g")
    count, gpus = given.get("count", 1), given.get("gpus")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 100:
        raise ConfigError(f"{where}: count is from 1 to 100, not '{count}'")
    if gpus is not None and not isinstance(gpus, list):
        raise ConfigError(f"{where}: gpus is a list of indexes or UUIDs, as in [0, 1]")
    percent = parse_share(str(given.get("sm", "100"))) or 100
    return Shape(str(name), size.bytes_on(0), percent, count, None if gpus is None else tuple(map(str, gpus)))


def _resource_name(name: Any) -> str:
    if not isinstance(name, str) or not _RESOURCE.fullmatch(name):
        raise ConfigError(f"'{name}' cannot be a resource; write DOMAIN/NAME, as in example.com/vgpu-memory")
    return name


def _mapping(content: Any, where: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is a list of keys and values: {', '.join(keys)}")
    unknown = [str(key) for key in content if key not in keys]
    if unknown:
        raise ConfigError(f"{where} has no '{unknown[0]}'; it has {', '.join(keys)}")
    return content
