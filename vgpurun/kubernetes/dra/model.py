"""The GPUs of a node as devices of resource.k8s.io/v1: any number of claims share one, each with a part of it.

Pure: what is published is computed here and sent by dra_publish.py.
"""

import re
from collections.abc import Sequence
from typing import Any

from vgpurun.host.gpus import Gpu, usable

API_VERSION = "resource.k8s.io/v1"
DRIVER = "gpu.vgpurun.io"
MEMORY = "memory"  # bytes of the GPU
COMPUTE = "compute"  # percent of the GPU's time; 0: no limit, and nothing set aside
MIB = 1 << 20

_VERSION = re.compile(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?", re.ASCII)
_TEXT_LENGTH = 64  # an attribute's


def device_name(gpu: Gpu) -> str:
    """Return a GPU's name as a device. It follows from the UUID: an index may be another GPU's after a restart."""
    return gpu.uuid.lower()


def capacity_bytes(gpu: Gpu) -> int:
    """Return what claims can have of a GPU's memory, in bytes: whole MiB."""
    return gpu.memory_bytes // MIB * MIB


def device(gpu: Gpu, driver_version: str) -> dict[str, Any]:
    """Return a GPU as a device that claims share.

    A request that names no memory gets all of the GPU's. One that names no compute has no compute limit: it shares what
    the limits of others leave.
    """
    memory = binary_quantity(capacity_bytes(gpu))
    attributes: dict[str, Any] = {
        "uuid": {"string": gpu.uuid},
        "model": {"string": gpu.name[:_TEXT_LENGTH]},
        "index": {"int": gpu.index},
        "type": {"string": "gpu" if gpu.mig_index is None else "mig"},
    }
    if version := semantic_version(driver_version):
        attributes["driverVersion"] = {"version": version}
    return {
        "name": device_name(gpu),
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": {
            MEMORY: {
                "value": memory,
                "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}},
            },
            COMPUTE: {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
            },
        },
    }


def binary_quantity(size_bytes: int) -> str:
    """Return a size as the API server would write it itself: 128Gi, not 131072Mi."""
    suffixes = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
    power = next(i for i in reversed(range(len(suffixes))) if size_bytes % 1024**i == 0)
    return f"{size_bytes // 1024**power}{suffixes[power]}"


def semantic_version(driver_version: str) -> str | None:
    """Return a driver's version as an attribute may have it, such as 580.159.4 for 580.159.04; None if it is none."""
    match = _VERSION.fullmatch(driver_version)
    return ".".join(str(int(part or 0)) for part in match.groups()) if match else None


def slice_spec(node: str, gpus: Sequence[Gpu], driver_version: str, generation: int) -> dict[str, Any]:
    """Return the spec of the one ResourceSlice of a node: its pool has all GPUs of the node.

    It is as the API server would write it itself, which leaves out a list that is empty.
    """
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
    }
    devices = [device(gpu, driver_version) for gpu in usable(gpus)]
    return {**spec, "devices": devices} if devices else spec
