"""The device plugin on a real GPU: what it finds there, and that the limits of a pod hold PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from node_names import COMPUTE, MEMORY
from node_of_test import node_of_test
from support.programs import text_of
from vgpurun.host import gpus


def fill() -> None:
    import torch

    _, total = torch.cuda.mem_get_info()
    held, refused = [], False
    try:
        while len(held) < 100:
            held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        refused = True
    print(json.dumps({"total_gib": total / 2**30, "held_gib": len(held) / 4, "refused": refused}))


def test_a_pod_has_its_part_of_the_gpu(python: str, built_library: Path) -> None:
    found = gpus.list_gpus()
    with node_of_test(built_library) as node:
        node.start_plugin("--driver", "mount")
        kubelet = node.kubelet
        kubelet.wait_for_resources(MEMORY, COMPUTE)
        units = sum(gpu.memory_bytes >> 30 for gpu in found if not gpu.mig_enabled)
        assert len(kubelet.plugins[MEMORY].healthy) == units
        kubelet.admit("pod", {"c": {MEMORY: 4, COMPUTE: 50}})
        answers = kubelet.start_container("pod", "c")
        (answer,) = (each for each in answers if each.mounts)
        assert all(Path(mount.host_path).exists() for mount in answer.mounts)
        assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} < {device.host_path for device in answer.devices}
        (etc,) = (Path(mount.host_path) for mount in answer.mounts if mount.container_path == "/.vgpurun/etc")
        unit = next(iter(kubelet.containers["pod", "c"][MEMORY].ids))
        environment = os.environ | {
            "LD_PRELOAD": str(built_library),
            "CUDA_VISIBLE_DEVICES": unit.rpartition("_")[0],
            "VGPURUN_LIMITS_FILE": str(etc / "limits"),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(etc.parent / "run/usage"),
        }
        command = [python, "-c", text_of(fill)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        print(seen)
        assert seen["total_gib"] == 4 and seen["refused"] and 2 < seen["held_gib"] < 4
        assert "reports no faults" not in node.log()
