"""`--driver sim`: the simulated driver of lib/sim in place of a GPU's.

VGPUSIM_CONFIG names its configuration, VGPUSIM_STATE the file in which its processes share their devices; without the
latter all containers and local processes of one vgpurun user share one in the state folder.

A container has a configuration of its own, with the chosen GPUs only, as it has only their nodes on a real host. It
lies where the simulated driver looks without any variable (lib/sim/config.h), so that `env -i` finds the GPUs too.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vgpurun import __version__, abi
from vgpurun.errors import DriverError
from vgpurun.host import gpus
from vgpurun.host.drivers import DriverPlan, has_hwcaps
from vgpurun.host.gpus import Gpu
from vgpurun.options import Mount
from vgpurun.storage import state

_CONFIG = "etc/sim.yaml"  # in the state folder, and from there in the container
_CONTAINER_STATE = f"{abi.CONTAINER_DIR}/sim.state"
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_TOOL = "nvidia-smi"


def activate(folder: Path) -> None:
    """Make this process see the simulated GPUs: its NVML is `folder`'s. Raises DriverError and GpuError."""
    config = os.environ.get("VGPUSIM_CONFIG")
    if config:
        if not Path(config).is_file():
            raise DriverError(f"VGPUSIM_CONFIG={config}: no such file")
        os.environ["VGPUSIM_CONFIG"] = str(Path(config).absolute())
    given = os.environ.get("VGPUSIM_STATE")
    path = Path(given or state.root_folder() / f"sim-{__version__}-{abi.ABI_VERSION}.state").absolute()
    os.environ["VGPUSIM_STATE"] = str(path)
    try:
        state.make_readable(path.parent)
        with suppress(FileExistsError):
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fchmod(file, 0o666)  # any user of a container writes it
            finally:
                os.close(file)
    except OSError as error:
        way_out = "VGPUSIM_STATE to a file" if given else "VGPURUN_STATE_DIR to a folder"
        raise DriverError(f"cannot make {path}: {error.strerror}; set {way_out} of yours") from None
    gpus.use_library(folder / "libnvidia-ml.so.1")


def plan_container(folder: Path, chosen: Sequence[Gpu]) -> DriverPlan:
    """Return what a container needs to see these of the simulated GPUs. After activate(). Raises DriverError."""
    return DriverPlan(
        "sim",
        libraries={name: str((folder / name).resolve()) for name in _LIBRARIES},
        tools={_TOOL: str(folder / _TOOL)},
        folder=str(folder),
        mounts=(Mount(os.environ["VGPUSIM_STATE"], _CONTAINER_STATE, False),),
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        has_hwcaps=has_hwcaps(),
        state_files={_CONFIG: container_config(os.environ.get("VGPUSIM_CONFIG"), chosen)},
    )


def container_config(path: str | None, chosen: Sequence[Gpu]) -> bytes:
    """Return a configuration with the chosen GPUs of that file (None: of the default one). Raises DriverError."""
    if not path:
        devices = "".join(f"- uuid: {gpu.uuid}\n" for gpu in chosen)
        return f"devices:\n{devices}state_file: {_CONTAINER_STATE}\n".encode()
    import yaml  # slow to import, and needed for simulated GPUs of the user's only

    try:
        # The simulated driver has its own idea of what a number is: here every value stays the text that it was.
        config: dict[str, Any] = yaml.load(Path(path).read_text(encoding="utf-8"), yaml.BaseLoader) or {}
        # A device's default UUID follows from its place, which it may lose here.
        numbered = _numbered(config.get("devices", [{}]))
        config["devices"] = [{**numbered[gpu.number], "uuid": gpu.uuid} for gpu in chosen]
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise DriverError(f"VGPUSIM_CONFIG={path} cannot be read: {reason}; lib/sim/example.yaml is one") from None
    config["state_file"] = _CONTAINER_STATE
    return bytes(yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=10_000, encoding="utf-8"))


def _numbered(devices: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return devices by the numbers that NVML gives them: those with one `mig_gpu` are instances of one GPU."""
    numbered: dict[str, Mapping[str, Any]] = {}
    card, instance, card_before = -1, 0, None
    for device in devices:
        mig_gpu = device.get("mig_gpu")
        instance = instance + 1 if mig_gpu is not None and mig_gpu == card_before else 0
        card += instance == 0
        numbered[str(card) if mig_gpu is None else f"{card}:{instance}"] = device
        card_before = mig_gpu
    return numbered


def local_environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a local process needs to see the simulated GPUs, beside what it was given. After activate()."""
    names = ("VGPUSIM_CONFIG", "VGPUSIM_STATE")
    environment = {name: os.environ[name] for name in names if os.environ.get(name)}
    for name, default in (("LD_LIBRARY_PATH", ""), ("PATH", os.defpath)):
        inherited = given.get(name, default)
        environment[name] = f"{folder}:{inherited}" if inherited else str(folder)
    return environment
