"""How the driver comes into a pod's container, in the words of the device plugin API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vgpurun.cdi.specification import Share
from vgpurun.errors import DriverError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.device_plugin.allocate_response import allocate_response, driver_of
from vgpurun.kubernetes.proto.deviceplugin_pb2 import ContainerAllocateResponse
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota

GPU = Gpu(0, "GPU-aaaa", "A GPU", 8 << 30, 0, "0000:01:00.0")


def answered(mode: str, folder: Path) -> ContainerAllocateResponse:
    share = Share("share", (DeviceQuota(GPU, Quota(1 << 30, 50)),), Path("/state"))
    return allocate_response(share, Path("/lib/libvgpu.so"), driver_of(mode, [GPU], [str(folder)]))


def write_specification(folder: Path, uuid: str) -> None:
    specification = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": uuid, "containerEdits": {}}]}
    (folder / "nvidia.json").write_text(json.dumps(specification))


@pytest.mark.parametrize("mode", ["auto", "cdi"])
def test_by_nvidias_cdi_device_where_the_node_has_it(tmp_path: Path, mode: str) -> None:
    write_specification(tmp_path, GPU.uuid)
    given = answered(mode, tmp_path)
    assert [device.name for device in given.cdi_devices] == ["nvidia.com/gpu=GPU-aaaa"]
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == "void" and not given.devices
    assert given.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(1 << 30)


def test_else_by_nvidias_runtime(tmp_path: Path) -> None:
    write_specification(tmp_path, "GPU-of-another-node")
    given = answered("auto", tmp_path)
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == GPU.uuid
    assert not given.cdi_devices and not given.devices
    assert {mount.container_path for mount in given.mounts} == {
        "/.vgpurun/libvgpu.so",
        "/.vgpurun/etc",
        "/.vgpurun/run/usage",
        "/etc/ld.so.preload",
        "/etc/ld-nix.so.preload",
        "/.vgpurun/run/presence",
        "/.vgpurun/tenants",
    }
    # They would replace the image's own.
    assert not {"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"} & set(given.envs)


def test_cdi_that_the_node_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="nvidia-ctk cdi generate"):
        answered("cdi", tmp_path)
