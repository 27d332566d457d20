"""The driver's own memory limits, from r615 on: it holds the processes of a cgroup to them, whatever these load.

The interface is nvml.h's of CUDA 13.4. Limits belong to a cgroup of the v2 hierarchy and go with it. Guaranteed memory
(soft) is kept from others where the driver makes room; nobody gets more than the most (hard).
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import EnforceError, GpuError
from vgpurun.host import nvml
from vgpurun.host.gpus import Gpu, asked
from vgpurun.host.nvml import NvmlError
from vgpurun.util.kernel_text import read_lines

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 2**64 - 1
_FIRST_DRIVER = "615"
_READ = "nvmlDeviceGetMemoryLimits_v1"


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
    with asked(gpu) as handle:
        found = _Get(bytes(cgroup))
        try:
            nvml.call(_READ, handle, ctypes.byref(found))
        except NvmlError as error:
            if error.code in nvml.UNKNOWN_TO_DRIVER:
                raise EnforceError(_too_old()) from None
            return MemoryLimits(None)  # none were ever set, or the cgroup is gone
    most = None if found.hardLimit == NO_LIMIT else int(found.hardLimit)
    return MemoryLimits(most, int(found.softLimit), int(found.currentUsed))


def write(gpu: Gpu, cgroup: Path, most_bytes: int | None, guaranteed_bytes: int = 0) -> None:
    """Set the limits of a cgroup on a GPU, or take them away. Raises EnforceError, and GpuError.

    It takes root, and the driver refuses less than what is in use.
    """
    with asked(gpu) as handle:
        _write(handle, gpu, cgroup, NO_LIMIT if most_bytes is None else most_bytes, guaranteed_bytes)
        top = CGROUPS / cgroup.relative_to(CGROUPS).parts[0]
        if top != cgroup and (top / "dmem.min").exists():
            # The driver adds what is guaranteed to each cgroup above, and takes it away only when it is lowered, not
            # when the cgroup goes. NVIDIA's way for cgroups that come and go: nothing is reserved at the top.
            found = _Get(bytes(top))
            with suppress(NvmlError):  # none were ever set there
                nvml.call(_READ, handle, ctypes.byref(found))
            if found.softLimit:
                _write(handle, gpu, top, int(found.hardLimit), 0)


def _write(handle: ctypes.c_void_p, gpu: Gpu, cgroup: Path, hard: int, soft: int) -> None:
    wanted = _Set(bytes(cgroup), soft, hard)
    try:
        nvml.call("nvmlDeviceSetMemoryLimits_v1", handle, ctypes.byref(wanted))
    except NvmlError as error:
        if error.code == nvml.NO_PERMISSION:
            raise EnforceError(f"only root may set the driver's own limit on GPU {gpu.number}") from None
        if error.code in nvml.UNKNOWN_TO_DRIVER:
            raise EnforceError(_too_old()) from None
        raise EnforceError(f"the driver refuses a memory limit for {cgroup} on GPU {gpu.number}: {error}") from None


def _too_old() -> str:
    return f"the NVIDIA driver {nvml.driver_version()} has no memory limits of its own ({_FIRST_DRIVER} or newer has)"
