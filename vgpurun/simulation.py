"""`--driver sim`: the simulated driver of lib/sim in place of a GPU's.

VGPUSIM_CONFIG names its configuration, VGPUSIM_STATE the file in which its processes share their devices; without the
latter all containers and local processes of one vgpurun user share one in the state folder.
"""

import os
import platform
from contextlib import suppress
from pathlib import Path

from vgpurun import abi, gpus, state
from vgpurun.drivers import CONTAINER_DRIVER_DIR, DriverPlan
from vgpurun.errors import DriverError, StateError
from vgpurun.options import Mount

_CONTAINER_CONFIG = f"{abi.CONTAINER_DIR}/sim.yaml"
_CONTAINER_STATE = f"{abi.CONTAINER_DIR}/sim.state"
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_TOOL = "nvidia-smi"


def activate(folder: Path) -> None:
    """Make this process see the simulated GPUs: its NVML is `folder`'s. Raises DriverError, StateError, GpuError."""
    config = os.environ.get("VGPUSIM_CONFIG")
    if config:
        if not Path(config).is_file():
            raise DriverError(f"VGPUSIM_CONFIG={config}: no such file")
        os.environ["VGPUSIM_CONFIG"] = str(Path(config).absolute())
    path = Path(os.environ.get("VGPUSIM_STATE") or state.root_folder() / "sim.state").absolute()
    os.environ["VGPUSIM_STATE"] = str(path)
    try:
        state.make_readable(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC))
            path.chmod(0o666)  # any user of a container writes it
    except OSError as error:
        raise StateError(f"cannot make {path}: {error.strerror}; set VGPUSIM_STATE to a file of yours") from None
    gpus.use_library(folder / "libnvidia-ml.so.1")


def plan_container(folder: Path) -> DriverPlan:
    """Return what a container needs to see the simulated GPUs. After activate()."""
    mounts = [Mount(str(folder), CONTAINER_DRIVER_DIR), Mount(os.environ["VGPUSIM_STATE"], _CONTAINER_STATE, False)]
    for place in (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64"):
        mounts += [Mount(str((folder / name).resolve()), f"{place}/{name}") for name in _LIBRARIES]
    mounts.append(Mount(str(folder / _TOOL), f"/usr/bin/{_TOOL}"))
    environment = {"VGPUSIM_STATE": _CONTAINER_STATE, "NVIDIA_VISIBLE_DEVICES": "void"}
    if config := os.environ.get("VGPUSIM_CONFIG"):
        mounts.append(Mount(config, _CONTAINER_CONFIG))
        environment["VGPUSIM_CONFIG"] = _CONTAINER_CONFIG
    return DriverPlan(
        "sim",
        mounts=tuple(mounts),
        environment=environment,
        library_path=CONTAINER_DRIVER_DIR,
        executable_path=CONTAINER_DRIVER_DIR,
    )


def local_environment(folder: Path) -> dict[str, str]:
    """Return what a local process needs to see the simulated GPUs. After activate()."""
    names = ("VGPUSIM_CONFIG", "VGPUSIM_STATE")
    environment = {name: os.environ[name] for name in names if os.environ.get(name)}
    for name, default in (("LD_LIBRARY_PATH", ""), ("PATH", os.defpath)):
        inherited = os.environ.get(name, default)
        environment[name] = f"{folder}:{inherited}" if inherited else str(folder)
    return environment
