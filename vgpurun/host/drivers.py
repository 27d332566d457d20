"""How the driver's files and device nodes come into a container: `--driver auto|toolkit|cdi|mount|sim`.

toolkit, cdi   The engine injects them, through NVIDIA's container toolkit or through CDI.
mount          vgpurun binds the host's own files, read-only, to where programs look without any variable:
               launch/driver_mounts.py says where.
sim            The simulated driver of lib/sim, for a host without a GPU.
auto           cdi or toolkit where the engine has it, else mount.
"""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgpurun.errors import DriverError
from vgpurun.host.gpus import Gpu
from vgpurun.options import Mount

CDI_KIND = "nvidia.com/gpu"
LIMITS_KIND = "vgpurun.io/limits"  # the device of host/limits_device.py

_LIBRARIES = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-gpucomp.so.*",
    "libnvidia-ml.so.1",
    "libnvidia-nvvm.so.[0-9]",
    "libnvidia-nvvm70.so.[0-9]",
    "libnvidia-opencl.so.1",
    "libnvidia-ptxjitcompiler.so.1",
)
_TOOL = "nvidia-smi"
_NODES_OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_OF_X86_64_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_LDCONFIG_S = 20.0
_OTHER_LIBRARY_FOLDERS = ("/usr/lib64", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib")


@dataclass(frozen=True)
class DeviceRequest:
    """The devices that the engine is asked to inject."""

    driver: str
    device_ids: tuple[str, ...]
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineFacts:
    """The engine's own facts, as far as they matter here. The CDI devices have their full names.

    `has_this_root`: this process is root and sees the engine's files. `rootless_uid`: whose a rootless engine is.
    """

    id: str = ""
    runtimes: frozenset[str] = frozenset()
    cdi_devices: frozenset[str] = frozenset()
    has_toolkit_hook: bool = False
    cdi_folders: tuple[str, ...] = ()
    is_rootless: bool = False
    has_this_root: bool = False
    cgroup_driver: str = ""
    default_runtime: str = ""
    rootless_uid: int | None = None


@dataclass(frozen=True)
class DriverPlan:
    """The additions of a driver mode to a container.

    `libraries` and `tools` are the driver's own files on this host, by the names that programs ask for; `folder` has
    the libraries and no others, where there is such a folder. `mounts` are further ones. `state_files` are further
    files of the state folder, by relative path; those in etc/ are read-only in the container. `has_hwcaps`: whether
    glibc looks for libraries of this processor in folders of their own.
    """

    mode: str
    libraries: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    device_requests: tuple[DeviceRequest, ...] = ()
    runtime: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    state_files: Mapping[str, bytes] = field(default_factory=dict)
    has_hwcaps: bool = False


def plan_driver(mode: str, gpus: Sequence[Gpu], facts: EngineFacts) -> DriverPlan:
    """Return what the mode adds for these GPUs (not for sim: see simulation.py). Raises DriverError."""
    cdi_names = _cdi_names(gpus, facts)
    has_toolkit = "nvidia" in facts.runtimes or facts.has_toolkit_hook
    if mode == "auto":
        mode = "cdi" if cdi_names else "toolkit" if has_toolkit else "mount"
    if mode == "cdi":
        if not cdi_names:
            raise DriverError(
                f"--driver cdi: the engine has no {CDI_KIND} device for every chosen GPU; write the CDI specification "
                "with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, or use --driver mount"
            )
        request = DeviceRequest("cdi", cdi_names)
        return DriverPlan("cdi", device_requests=(request,), environment={"NVIDIA_VISIBLE_DEVICES": "void"})
    if mode == "toolkit":
        return _plan_toolkit(gpus, facts, has_toolkit)
    return _plan_mount(gpus)


def _plan_toolkit(gpus: Sequence[Gpu], facts: EngineFacts, has_toolkit: bool) -> DriverPlan:
    if not has_toolkit:
        raise DriverError(
            "--driver toolkit: the engine has no NVIDIA runtime; install the NVIDIA Container Toolkit and run "
            "`nvidia-ctk runtime configure --runtime=docker`, or use --driver mount"
        )
    uuids = tuple(gpu.uuid for gpu in gpus)
    if "nvidia" in facts.runtimes:
        environment = {"NVIDIA_VISIBLE_DEVICES": ",".join(uuids), "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        return DriverPlan("toolkit", runtime="nvidia", environment=environment)
    return DriverPlan("toolkit", device_requests=(DeviceRequest("", uuids, ("gpu", "compute", "utility")),))


def _plan_mount(gpus: Sequence[Gpu]) -> DriverPlan:
    folder = find_driver_folder()
    libraries = sorted({path for pattern in _LIBRARIES for path in folder.glob(pattern)})
    tool = _find_tool(_TOOL, folder)
    return DriverPlan(
        "mount",
        libraries={path.name: str(path.resolve()) for path in libraries},
        tools={_TOOL: str(Path(tool).resolve())} if tool else {},
        devices=tuple(device_nodes(gpus)),
        # An engine whose default runtime is NVIDIA's must not add all GPUs on its own.
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        has_hwcaps=has_hwcaps(),
    )


def has_hwcaps(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Ask whether this processor is an x86-64-v2, for which glibc has had folders of their own since 2.33."""
    with cpuinfo.open() as file:
        flags = next((line for line in file if line.startswith("flags")), "")  # the kernel writes a line as it is read
    return set(_OF_X86_64_V2) <= set(flags.split())


def device_nodes(
    gpus: Sequence[Gpu], dev: Path = Path("/dev"), capabilities: Path = Path("/proc/driver/nvidia/capabilities")
) -> list[str]:
    """Return the nodes of these GPUs and those that all GPUs share. Raises DriverError when one is missing."""
    nodes = [dev / name for name in dict.fromkeys(f"nvidia{gpu.minor_number}" for gpu in gpus)]
    nodes += [dev / name for name in _NODES_OF_ALL]
    for gpu in gpus:
        if gpu.mig_index is not None:
            nodes += [dev / "nvidia-caps" / f"nvidia-cap{minor}" for minor in _mig_minors(gpu, capabilities)]
    for node in nodes:
        if not node.exists() and node.name != "nvidia-uvm-tools":
            raise DriverError(f"{node} does not exist; make the driver's nodes with: nvidia-modprobe -u -c 0")
    return [str(node) for node in nodes if node.exists()]


def _mig_minors(gpu: Gpu, capabilities: Path) -> list[int]:
    """Return which capabilities open an instance: that of its GPU instance, and that of its compute instance."""
    gpu_instance, compute_instance = gpu.mig_ids
    folder = capabilities / f"gpu{gpu.minor_number}" / "mig" / f"gi{gpu_instance}"
    minors = []
    for path in (folder / "access", folder / f"ci{compute_instance}" / "access"):
        try:
            found = re.search(r"^DeviceFileMinor: *([0-9]+)$", path.read_text(), re.MULTILINE)
        except OSError as error:
            raise DriverError(f"{path}: {error.strerror}; it tells which device nodes open a MIG instance") from None
        if found is None:
            raise DriverError(f"{path} does not tell which device node opens the MIG instance {gpu.number}")
        minors.append(int(found.group(1)))
    return minors


def find_driver_folder() -> Path:
    """Return the folder with this host's libcuda.so.1 and libnvidia-ml.so.1. Raises DriverError."""
    candidates = [*_loaded_nvml_folders(), *os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_ldconfig_folders()]
    candidates += [f"/usr/lib/{platform.machine()}-linux-gnu", *_OTHER_LIBRARY_FOLDERS]
    for candidate in candidates:
        folder = Path(candidate)
        if candidate.startswith("/") and (folder / "libcuda.so.1").exists() and (folder / "libnvidia-ml.so.1").exists():
            return folder
    raise DriverError(
        "this host's libcuda.so.1 was not found beside libnvidia-ml.so.1; add the driver's folder to LD_LIBRARY_PATH, "
        "or let the engine bring the driver with --driver toolkit or cdi"
    )


def _loaded_nvml_folders() -> list[str]:
    """Return the path of the libnvidia-ml that answers this process."""
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return list(dict.fromkeys(re.findall(r"(/\S*)/libnvidia-ml\.so[^/\n]*$", maps, re.MULTILINE)))


def _ldconfig_folders() -> list[str]:
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if ldconfig is None:
        return []
    try:
        done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False, timeout=_LDCONFIG_S)
    except subprocess.TimeoutExpired:
        return []  # like a host without ldconfig
    listing = done.stdout
    return re.findall(r"libcuda\.so\.1 .*=> (/.*)/libcuda\.so\.1$", listing, re.MULTILINE)


def _find_tool(name: str, library_folder: Path) -> str | None:
    beside = library_folder.parent / "bin"
    return shutil.which(name, path=f"{beside}:{os.environ.get('PATH', '')}:/usr/bin")


def _cdi_names(gpus: Sequence[Gpu], facts: EngineFacts) -> tuple[str, ...]:
    """Return the CDI name of each GPU, by its UUID or else its index; nothing if one of them has none."""
    names = []
    for gpu in gpus:
        candidates = (f"{CDI_KIND}={gpu.uuid}", f"{CDI_KIND}={gpu.number}")
        name = next((candidate for candidate in candidates if candidate in facts.cdi_devices), None)
        if name is None:
            return ()
        names.append(name)
    return tuple(names)


def read_cdi_devices(folders: Sequence[str]) -> frozenset[str]:
    """Return the names of the GPUs, and of devices of limits, in the CDI specifications of these folders."""
    return frozenset(
        f"{each['kind']}={device['name']}" for each in cdi_specifications(folders) for device in each["devices"]
    )


def cdi_specifications(folders: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the CDI specifications of GPUs and of limits; what cannot be read the engine does not offer either."""
    for folder in folders:
        for path in sorted(Path(folder).glob("*")):
            if path.suffix not in (".json", ".yaml", ".yml"):
                continue
            try:
                read = _read_specification(path)
                is_named = all(device["name"] is not None for device in read["devices"])
                if is_named and read["kind"] in (CDI_KIND, LIMITS_KIND):
                    yield read
            except (OSError, ValueError, KeyError, TypeError):
                continue


def _read_specification(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    if CDI_KIND not in text:
        return {"kind": ""}  # describes other devices
    import yaml  # slow to import, and needed for CDI only

    try:
        # libyaml's reader takes a tenth of the time of Python's.
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError from error
