"""A CDI specification of shares: one device for each, by which docker, podman, nerdctl or a kubelet starts containers.

Pure: nothing here touches the disk. files.py writes specifications, nvidia.py reads NVIDIA's own.

A share is a state folder (storage/state.py) with limits and usage, and the GPUs that they are of. To make one:

    driver = drivers.plan_driver("mount", gpus, EngineFacts())
    StateFolder.make(folder, shared_files(quotas, driver), owner).close()
    tenants.make(folder)
    device = cdi_device(Share("alice", quotas, folder), library.find().path, driver_edits(driver))
    write_specification(path, specification([device]))
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpurun import abi
from vgpurun.cdi.edits import Edits, joined, mount, variables
from vgpurun.errors import OptionError
from vgpurun.limits.device_quotas import limit_variables, toolkit_variables
from vgpurun.limits.model import DeviceQuota
from vgpurun.options.mount_targets import PRELOAD_FILES
from vgpurun.storage import tenants

KIND = "vgpurun.io/gpu"
# The oldest that has all that is used here, so that old engines (Podman 4.3 of Debian 12) take it.
CDI_VERSION = "0.5.0"
_NEWER = {"additionalGids": "0.7.0", "intelRdt": "0.7.0"}  # NVIDIA's own may have these
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Share:
    """Describe the edits for every container that names the device: together they have these quotas.

    `name` is the device's, as in vgpurun.io/gpu=NAME. `quotas` are the GPUs in NVML's order, each with memory_bytes
    (None: no limit), sm_percent (None: no limit) and policies. `state_folder` is the host's: etc/ with what
    shared_files() returns, and run/usage; containers of one folder share its limits.
    """

    name: str
    quotas: tuple[DeviceQuota, ...]
    state_folder: Path


def check_name(name: str) -> str:
    """Return a name that a device may have. Raises OptionError."""
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"'{name}' cannot be a name: give up to 63 of A-Z, a-z, 0-9, '_', '.' and '-', with a letter or digit at "
            "both ends"
        )
    return name


def cdi_device(share: Share, library: Path, driver: Edits) -> dict[str, Any]:
    """Return the device of a share. `library` is libvgpu.so on the host.

    `driver` brings the driver's files and nodes: driver_edits() of a DriverPlan (mount, sim), nvidia_edits() of
    NVIDIA's own specification, or {} where something else does (NVIDIA's runtime, a second CDI device).

    The folder of the tenant must be there when the container starts: tenants.make() makes it. Raises OptionError for a
    name that cannot be.
    """
    return {"name": check_name(share.name), "containerEdits": joined([driver, share_edits(share, library)])}


def share_edits(share: Share, library: Path) -> Edits:
    """Return what limits a container to a share: the library, its files and variables."""
    etc, usage = share.state_folder / "etc", share.state_folder / "run" / "usage"
    return {
        "env": variables(
            limit_variables(share.quotas) | {abi.ENV_USAGE_FILE: abi.CONTAINER_USAGE} | toolkit_variables(share.quotas)
        ),
        "mounts": [
            mount(str(library), abi.CONTAINER_LIBRARY),
            mount(str(etc), f"{abi.CONTAINER_DIR}/etc"),
            mount(str(usage), abi.CONTAINER_USAGE, read_only=False),
            *(mount(str(etc / "ld.so.preload"), target) for target in PRELOAD_FILES),
            mount(abi.LOCK_DIR, abi.CONTAINER_TENANTS),
            mount(str(tenants.presence_file(share.state_folder)), abi.CONTAINER_PRESENCE, read_only=False),
        ],
    }


def specification(devices: Sequence[dict[str, Any]], kind: str = KIND) -> dict[str, Any]:
    """Return the specification of some devices, at least one. `kind` is VENDOR/CLASS."""
    keys = {key for device in devices for key in device["containerEdits"]}
    version = max([CDI_VERSION, *(_NEWER[key] for key in keys if key in _NEWER)])
    return {"cdiVersion": version, "kind": kind, "devices": list(devices)}
