"""Reads which container has which units, from kubelet's own record: the checkpoint of its device manager.

Kubelet writes it when a container has all of its devices, and so before any container starts. Init containers are in it
too; kubelet's pod-resources API leaves those out.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import KubernetesError

FILE_NAME = "kubelet_internal_checkpoint"


class Holding(NamedTuple):
    """The units that one container has, by the names of their resources."""

    pod_uid: str
    container: str
    units: Mapping[str, frozenset[str]]


def read_holdings(path: Path) -> list[Holding]:
    """Return what all containers have; nothing where there is no record yet. Raises KubernetesError."""
    try:
        entries = json.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or []
        found: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        for entry in entries:
            container = found.setdefault((str(entry["PodUID"]), str(entry["ContainerName"])), {})
            container[str(entry["ResourceName"])] = frozenset(_ids(entry["DeviceIDs"]))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KubernetesError(f"kubelet's record {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise KubernetesError(f"kubelet's record {path} has an unknown form") from None
    return [Holding(pod, name, units) for (pod, name), units in found.items()]


def _ids(devices: Any) -> Sequence[str]:
    """A list for each NUMA node; before Kubernetes 1.20 one list."""
    lists = devices.values() if isinstance(devices, dict) else [devices]
    return [str(each) for ids in lists for each in ids or ()]
