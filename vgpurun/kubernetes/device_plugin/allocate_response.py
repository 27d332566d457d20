"""The device plugin API's response by which kubelet gives a container the same as a CDI device would."""

from collections.abc import Sequence
from pathlib import Path

from vgpurun.cdi.edits import Edits, driver_edits, joined
from vgpurun.cdi.nvidia import FOLDERS
from vgpurun.cdi.specification import Share, share_edits
from vgpurun.host.drivers import DriverPlan, EngineFacts, plan_driver, read_cdi_devices
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.proto.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse, DeviceSpec, Mount


def driver_of(mode: str, gpus: Sequence[Gpu], cdi_folders: Sequence[str] = FOLDERS) -> DriverPlan:
    """Return how a container of this node gets the driver (not for sim: see simulation.py). Raises DriverError.

    auto is cdi where NVIDIA's CDI specification has the GPUs, else toolkit: NVIDIA's runtime, by a variable.
    """
    facts = EngineFacts(runtimes=frozenset({"nvidia"}), cdi_devices=read_cdi_devices(cdi_folders))
    return plan_driver(mode, gpus, facts)


def allocate_response(share: Share, library: Path, driver: DriverPlan) -> ContainerAllocateResponse:
    """Return what a container gets that has a share of GPUs."""
    files: Edits = driver_edits(driver) if driver.mode in ("mount", "sim") else {}
    edits = joined([files, share_edits(share, library)])
    variables = dict(each.split("=", 1) for each in edits.get("env", []))
    return ContainerAllocateResponse(
        envs={**driver.environment, **variables},
        mounts=[
            Mount(container_path=each["containerPath"], host_path=each["hostPath"], read_only="ro" in each["options"])
            for each in edits.get("mounts", [])
        ],
        devices=[
            DeviceSpec(container_path=each["path"], host_path=each["path"], permissions="rw")
            for each in edits.get("deviceNodes", [])
        ],
        cdi_devices=[CDIDevice(name=name) for request in driver.device_requests for name in request.device_ids],
    )
