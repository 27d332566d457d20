"""The hook by which an engine has the driver's own memory limits set for a container (host/limits_device.py).

The engine runs it as root, in the host's namespaces, once the container's cgroup is there and before its first program.
Standard input has OCI's state of the container. An error keeps the container from its start, and the engine shows it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vgpurun import abi
from vgpurun.errors import EnforceError, VgpurunError
from vgpurun.host import gpus, memory_limits
from vgpurun.limits import limits_file
from vgpurun.limits.model import quotas_from_json
from vgpurun.limits.quota import Quota
from vgpurun.storage import state

_NVML = "libnvidia-ml.so.1"
_MOST_CHANGES = 10  # changes of the limits while they are being set


def main() -> int:
    """Set the limits of the container on standard input; return the exit code."""
    try:
        container = json.load(sys.stdin)
        mounts = sources_of(config_of(container))
        if len(sys.argv) > 1:
            simulate(Path(sys.argv[1]), mounts)
        set_limits(int(container["pid"]), Path(mounts[f"{abi.CONTAINER_DIR}/etc"]) / "limits")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"vgpurun: the engine does not say what a container's limits are: {error!r}", file=sys.stderr)
        return 1
    except VgpurunError as error:
        print(f"vgpurun: {error}; without this: --enforce library", file=sys.stderr)
        return 1
    return 0


def set_limits(pid: int, path: Path) -> None:
    """Set the limits of the cgroup that a process is in to those of a limits file.

    An `update` meanwhile sets those of the cgroups that it finds after it has changed the file, and the file is read
    again after they were set here: so one of both sets the new ones. Raises EnforceError, and GpuError.
    """
    cgroup = memory_limits.cgroup_of(pid)
    own = memory_limits.cgroup_of(os.getpid())  # the engine's, or the caller's if the engine has no daemon
    if cgroup is None or (own is not None and own.is_relative_to(cgroup)):
        raise EnforceError("the container has no cgroup v2 of its own")
    by_uuid = {gpu.uuid: gpu for gpu in gpus.list_gpus() if gpu.mig_index is None}
    limits = _read(path)
    for _ in range(_MOST_CHANGES):
        for uuid, quota in limits:
            if uuid in by_uuid and quota.memory_bytes is not None:
                memory_limits.write(by_uuid[uuid], cgroup, quota.memory_bytes, quota.guaranteed_bytes or 0)
        before, limits = limits, _read(path)
        if limits == before:
            return
    raise EnforceError(f"{path} changes all the time")


def _read(path: Path) -> Sequence[tuple[str, Quota]]:
    try:
        limits = limits_file.read_limits(path)
    except OSError as error:
        raise EnforceError(f"{path}: {error.strerror}") from None
    if limits is None:  # made by another version, whose owner file says as much
        return quotas_from_json(str((state.read_owner(path.parent.parent) or {}).get("quota")))
    return limits


def config_of(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine has the container be, by OCI's state of it. Raises OSError, ValueError and KeyError."""
    return dict(json.loads((Path(container["bundle"]) / "config.json").read_bytes()))


def sources_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the host's path of each mount, by the container's. Raises KeyError and TypeError."""
    return {str(each["destination"]): str(each["source"]) for each in config["mounts"] if "source" in each}


def simulate(folder: Path, mounts: Mapping[str, str]) -> None:
    """Use the simulated driver, with what the container has of it."""
    os.environ["VGPUSIM_CONFIG"] = f"{mounts[f'{abi.CONTAINER_DIR}/etc']}/sim.yaml"
    os.environ["VGPUSIM_STATE"] = mounts[f"{abi.CONTAINER_DIR}/sim.state"]
    gpus.use_library(folder / _NVML)


if __name__ == "__main__":
    sys.exit(main())
