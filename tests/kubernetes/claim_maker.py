"""Resource claims as the API server has them after the scheduler has allocated devices."""

from __future__ import annotations

import uuid
from typing import Any

from vgpurun.host.gpus import Gpu

NODE = "node-a"
DRIVER = "gpu.vgpurun.io"
CONFIG = {"apiVersion": "gpu.vgpurun.io/v1", "kind": "GpuConfig"}


def result(gpu: Gpu | str, memory: str = "2Gi", compute: str = "0", **fields: Any) -> dict[str, Any]:
    """A part of a GPU for the request `gpu`."""
    device = gpu if isinstance(gpu, str) else gpu.uuid.lower()
    return {
        "request": "gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"memory": memory, "compute": compute},
        **fields,
    }


def parameters(source: str = "FromClaim", requests: tuple[str, ...] = (), **given: Any) -> dict[str, Any]:
    """An entry of an allocation's configuration for our driver."""
    opaque = {"driver": DRIVER, "parameters": CONFIG | given}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def claim(*results: dict[str, Any], name: str = "share", config: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """A claim in the namespace `lab`, reserved for the pod of the same name."""
    pod = {"resource": "pods", "name": name, "uid": str(uuid.uuid4())}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "lab", "name": name, "uid": str(uuid.uuid4())},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(config)}},
            "reservedFor": [pod],
        },
    }
