"""The driver's own memory limits, from r615 on: it holds the processes of a cgroup to them, whatever these load.

The interface is nvml.h's of CUDA 13.4, called here by the structures of that header, so that an older nvidia-ml-py will
do. Limits belong to a cgroup of the v2 hierarchy and go with it. Guaranteed memory (soft) is kept from others where the
driver makes room; nobody gets more than the most (hard).
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import EnforceError, GpuError
from vgpurun.host.gpus import Gpu, asked
from vgpurun.util.kernel_text import read_lines

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 2**64 - 1
_FIRST_DRIVER = "615"


class MemoryLimits(NamedTuple):
    """The limits of a cgroup on one GPU, and what it uses; `most_bytes` is None without a limit."""

    most_bytes: int | None
    guaranteed_bytes: int = 0
    used_bytes: int = 0


class _Set(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
    )


class _Get(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (*_Set._fields_, ("currentUsed", ctypes.c_ulonglong))


def lacking(gpus: Sequence[Gpu]) -> str:
    """Return what this host lacks for limits of the driver's own on these GPUs; nothing where it has all.

    Raises nothing.
    """
    if not (CGROUPS / "cgroup.controllers").exists():
        return f"{CGROUPS} is not cgroup v2"
    for gpu in gpus:
        if gpu.mig_index is not None or gpu.mig_enabled:
            return f"GPU {gpu.number} is in MIG mode, where the driver has no such limits"
        try:
            read(gpu, CGROUPS)
        except (EnforceError, GpuError) as error:
            return str(error)
    return ""


def backend() -> str:
    """Return what keeps the driver's accounts: the kernel's controller (`dmem`), or the driver itself (`misc`)."""
    try:
        return "dmem" if "nvidia/" in (CGROUPS / "dmem.capacity").read_text() else "misc"
    except OSError:
        return "misc"


def cgroup_of(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Return the folder of a process's cgroup; None for one that is gone, or out of sight."""
    try:
        lines = read_lines(proc / str(pid) / "cgroup")
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::/")), "")
    return CGROUPS / path.lstrip("/") if path and "/.." not in path else None


def read(gpu: Gpu, cgroup: Path) -> MemoryLimits:
    """Return the limits of a cgroup on a GPU. Raises EnforceError where the driver has no such thing, and GpuError."""
    with asked(gpu) as (nvml, handle):
        found = _Get(bytes(cgroup))
        try:
            _call(nvml, "nvmlDeviceGetMemoryLimits_v1", handle, found)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            raise EnforceError(_too_old(nvml)) from None
        except nvml.NVMLError:
            return MemoryLimits(None)  # none were ever set, or the cgroup is gone
    most = None if found.hardLimit == NO_LIMIT else int(found.hardLimit)
    return MemoryLimits(most, int(found.softLimit), int(found.currentUsed))


def write(gpu: Gpu, cgroup: Path, most_bytes: int | None, guaranteed_bytes: int = 0) -> None:
    """Set the limits of a cgroup on a GPU, or take them away. Raises EnforceError, and GpuError.

    It takes root, and the driver refuses less than what is in use.
    """
    with asked(gpu) as (nvml, handle):
        _write(nvml, handle, gpu, cgroup, NO_LIMIT if most_bytes is None else most_bytes, guaranteed_bytes)
        top = CGROUPS / cgroup.relative_to(CGROUPS).parts[0]
        if top != cgroup and (top / "dmem.min").exists():
            # The driver adds what is guaranteed to each cgroup above, and takes it away only when it is lowered, not
            # when the cgroup goes. NVIDIA's way for cgroups that come and go: nothing is reserved at the top.
            found = _Get(bytes(top))
            _call(nvml, "nvmlDeviceGetMemoryLimits_v1", handle, found)
            if found.softLimit:
                _write(nvml, handle, gpu, top, int(found.hardLimit), 0)


def _write(nvml: Any, handle: Any, gpu: Gpu, cgroup: Path, hard: int, soft: int) -> None:
    try:
        _call(nvml, "nvmlDeviceSetMemoryLimits_v1", handle, _Set(bytes(cgroup), soft, hard))
    except nvml.NVMLError_NoPermission:
        raise EnforceError(f"only root may set the driver's own limit on GPU {gpu.number}") from None
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        raise EnforceError(_too_old(nvml)) from None
    except nvml.NVMLError as error:
        raise EnforceError(f"the driver refuses a memory limit for {cgroup} on GPU {gpu.number}: {error}") from None


def _too_old(nvml: Any) -> str:
    version = nvml.nvmlSystemGetDriverVersion()
    shown = version.decode() if isinstance(version, bytes) else version
    return f"the NVIDIA driver {shown} has no memory limits of its own ({_FIRST_DRIVER} or newer has)"


def _call(nvml: Any, name: str, handle: Any, limits: ctypes.Structure) -> None:
    nvml._nvmlCheckReturn(nvml._nvmlGetFunctionPointer(name)(handle, ctypes.byref(limits)))
