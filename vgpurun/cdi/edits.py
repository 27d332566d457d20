"""Container edits: what a CDI device changes in a container, as the specification has it.

A variable here replaces the image's own, so there is no LD_PRELOAD, LD_LIBRARY_PATH or PATH: the library comes by
/etc/ld.so.preload, and the driver's files lie where a program looks without any variable.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from vgpurun.config import values as config
from vgpurun.errors import DriverError, EnforceError
from vgpurun.host import limits_device, memory_limits, mps
from vgpurun.host.drivers import DriverPlan
from vgpurun.launch.driver_mounts import driver_files
from vgpurun.limits.model import DeviceQuota
from vgpurun.options import Mount

# The containerEdits of a CDI specification: env, deviceNodes, mounts, hooks.
Edits: TypeAlias = dict[str, Any]

TOGETHER_HOOK = "vgpurun.cdi.together_hook"
_BOUND = ("rbind", "rprivate", "nosuid", "nodev")


def mount(source: str, target: str, read_only: bool = True) -> dict[str, Any]:
    """Return a bind of a host's path."""
    return {"hostPath": source, "containerPath": target, "options": [*_BOUND, "ro" if read_only else "rw"]}


def variables(values: Mapping[str, str]) -> list[str]:
    """Return variables as NAME=VALUE."""
    return [f"{name}={value}" for name, value in values.items()]


def joined(parts: Sequence[Edits]) -> Edits:
    """Return all of these edits as one, in their order; what none of them has is left out."""
    whole: Edits = {}
    for part in parts:
        for key, values in part.items():
            whole.setdefault(key, []).extend(values)
    return {key: values for key, values in whole.items() if values}


def driver_edits(driver: DriverPlan) -> Edits:
    """Return what brings a driver's files and nodes into a container, for the modes `mount` and `sim`.

    Raises DriverError for a mode in which an engine brings them: for cdi see nvidia.py.
    """
    if driver.device_requests or driver.runtime:
        raise DriverError(f"--driver {driver.mode} cannot be part of a CDI device; use mount")
    return {
        "env": variables(driver.environment),
        "deviceNodes": [{"path": path} for path in driver.devices],
        "mounts": [_mount_of(each) for each in (*driver_files(driver), *driver.mounts)],
    }


def limits_edits(quotas: Sequence[DeviceQuota], simulated_driver: Path | None = None) -> Edits:
    """Return the hook that sets the driver's own memory limits, where this host has them and `enforce` is not library.

    Raises ConfigError, and EnforceError where `enforce` is driver and the host has none.
    """
    mode, gpus = config.default("enforce"), [each.gpu for each in quotas]
    if mode == "library" or all(each.quota.memory_bytes is None for each in quotas):
        return {}
    if missing := memory_limits.lacking(gpus) or distrust():
        if mode == "driver":
            raise EnforceError(f"enforce: driver: {missing}")
        return {}
    return {"hooks": [limits_device.hook(simulated_driver)]}


def together_edits(
    slice_folder: Path, pipes: str, simulated_driver: Path | None = None, module: str = TOGETHER_HOOK
) -> Edits:
    """Return what has a container join a slice's MPS server: its folder of pipes, and the hook that starts it."""
    return {
        "env": variables({mps.ENV_PIPES: mps.CONTAINER_PIPES}),
        "mounts": [mount(pipes, mps.CONTAINER_PIPES, read_only=False)],
        "hooks": [limits_device.hook(simulated_driver, module, str(slice_folder))],
    }


def distrust() -> str:
    """Return why no engine is told to run a hook of this vgpurun, or nothing."""
    path = limits_device.distrusted()
    return "" if path is None else f"others than root can change {path}, and engines would run it as root"


def _mount_of(each: Mount) -> dict[str, Any]:
    return mount(each.source or "", each.target, each.read_only)
