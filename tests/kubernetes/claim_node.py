"""A node with GPUs, and a DRA driver on it; what NVIDIA's CDI specification brings there are plain files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claim_maker import NODE
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra.claim import ClaimName
from vgpurun.kubernetes.dra.devices import ClaimDevices, NodeDriver
from vgpurun.kubernetes.dra.driver import Driver
from vgpurun.kubernetes.dra.state import Claims

GIB = 1 << 30
GPUS = [
    Gpu(i, f"GPU-{i:08d}-aaaa-bbbb-cccc-dddddddddddd", "Test GPU", 8 * GIB, i, f"00000000:0{i}:00.0") for i in range(3)
]


@dataclass
class ClaimNode:
    """Has folders of its own under `folder`; `cluster` is where its driver asks for claims."""

    folder: Path
    cluster: Any
    gpus: list[Gpu] = field(default_factory=lambda: list(GPUS))
    lines: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cdi = self.folder / "cdi"
        self.root = self.folder / "state"
        self.cdi.mkdir(parents=True, exist_ok=True)
        library = {"hostPath": "/driver/libcuda.so.1", "containerPath": "/usr/lib64/libcuda.so.1"}
        devices = [
            {"name": str(gpu.index), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{gpu.index}"}]}}
            for gpu in GPUS
        ]
        edits = {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [library],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
        }
        nvidia = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": edits, "devices": devices}
        (self.cdi / "nvidia.json").write_text(json.dumps(nvidia))
        self.claims = Claims(self.root)

    def driver(self) -> Driver:
        """A new one, as after a start of the plugin."""
        devices = ClaimDevices(self.cdi, NodeDriver("cdi", cdi_folders=[str(self.cdi)]))
        library = Path("/lib/libvgpu.so")
        say, fault_of = self.lines.append, self.faults.get
        return Driver(NODE, self.cluster, self.claims, devices, library, lambda: self.gpus, say, fault_of)

    def specification(self, uid: str) -> dict[str, Any] | None:
        path = self.cdi / f"vgpurun.io-claim-{uid}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def left(self) -> set[str]:
        """The names of all that is there of claims, half-made things included."""
        folders = self.root / "claims"
        found = {path.name for path in self.cdi.iterdir()} - {"nvidia.json"}
        return found | ({path.name for path in folders.iterdir()} - {".lock"} if folders.exists() else set())


class OneClaim:
    """A cluster that has this claim, or none."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.made: dict[str, Any] | None = made

    def claim(self, *_: str) -> dict[str, Any] | None:
        return self.made


def named(made: dict[str, Any]) -> ClaimName:
    metadata = made["metadata"]
    return ClaimName(metadata["uid"], metadata["namespace"], metadata["name"])
