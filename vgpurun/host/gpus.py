"""The GPUs of this host, from NVML."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ctypes import c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import GpuError, NoDriverError
from vgpurun.host import nvml
from vgpurun.host.gpu import Gpu as Gpu
from vgpurun.host.nvml import NvmlError

# Why there is no driver to ask, and what helps.
_NO_DRIVER = {
    nvml.DRIVER_NOT_LOADED: "the kernel module of this host's NVIDIA driver is not loaded ({}); try: modprobe nvidia.",
    nvml.LIB_RM_VERSION_MISMATCH: "this host's NVIDIA driver was changed, and the old one's module is still loaded "
    "({}); restart the host.",
    nvml.NO_PERMISSION: "this user may not use the NVIDIA driver ({}); who may read and write /dev/nvidia*?",
}
_NO_DRIVER_AT_ALL = "no NVIDIA driver on this host ({}); does nvidia-smi work?"
_kept_handles: dict[str, c_void_p] | None = None  # handles of whole GPUs, good while NVML is kept open
_NOT_TOLD = "as under WSL2, and of a GPU whose memory is the host's, see docs/faq.md"


@dataclass(frozen=True)
class GpuUse:
    """A GPU at one moment as NVML sees it, with all programs. None is what it does not tell."""

    memory_used_bytes: int
    utilization_percent: int | None
    temperature_c: int | None = None
    power_w: float | None = None


def use_library(path: Path) -> None:
    """Take NVML from this file (the simulated driver's) instead of the host's. Raises GpuError."""
    try:
        nvml.load(path)
    except OSError as error:
        raise GpuError(f"cannot load the simulated driver {path}: {error}; build it with: make -C lib sim") from None


@dataclass(frozen=True)
class LostGpu:
    """A GPU that the driver lists and cannot reach, as one that has fallen off the bus; `reason` is NVML's word."""

    index: int
    reason: str

    def __str__(self) -> str:
        return f"GPU {self.index} cannot be used: {self.reason}"


class Survey(NamedTuple):
    """The GPUs of this host in NVML's order, and those that nothing can run on since the driver cannot reach them."""

    gpus: list[Gpu]
    lost: list[LostGpu]


def survey() -> Survey:
    """Return which GPUs this host has. Raises GpuError when there is no driver, or no GPU that it can reach.

    In the place of a GPU in MIG mode are its instances.
    """
    _initialise()
    found = Survey([], [])
    try:
        for index in range(nvml.device_count()):
            try:
                found.gpus.extend(_read_gpus_at(index))
            except NvmlError as error:
                not_told = f", {_NOT_TOLD}" if error.code == nvml.NOT_SUPPORTED else ""
                found.lost.append(LostGpu(index, f"{error}{not_told}"))
    except NvmlError as error:
        raise GpuError(f"the NVIDIA driver cannot list the GPUs: {error}; does nvidia-smi work?") from None
    finally:
        nvml.shutdown()
    if not found.gpus and found.lost:
        raise GpuError(f"{', '.join(map(str, found.lost))}; does nvidia-smi work?")
    if not found.gpus:
        raise GpuError("the NVIDIA driver sees no GPU on this host; try --driver sim for a simulated one")
    return found


def list_gpus() -> list[Gpu]:
    """Return those of survey() that the driver can reach. Raises GpuError."""
    return survey().gpus


def read_use(gpus: Sequence[Gpu]) -> list[GpuUse]:
    """Return what is used of each GPU now. Raises GpuError."""
    _initialise()
    try:
        return [_read_use(gpu) for gpu in gpus]
    finally:
        nvml.shutdown()


@contextmanager
def held_open() -> Iterator[None]:
    """Keep NVML initialised meanwhile, so that asking it again and again costs little. Raises GpuError at the start."""
    global _kept_handles  # for the whole process, like NVML itself
    _initialise()
    _kept_handles = {}
    try:
        yield
    finally:
        _kept_handles = None
        with suppress(NvmlError):
            nvml.shutdown()  # NVML counts its users


@contextmanager
def asked(gpu: Gpu) -> Iterator[c_void_p]:
    """Yield NVML's handle of a GPU, for what has a file of its own. Raises GpuError."""
    _initialise()
    try:
        try:
            handle = _handle(gpu)
        except NvmlError as error:
            raise GpuError(f"GPU {gpu.number} cannot be used: {error}") from None
        yield handle
    finally:
        nvml.shutdown()


@dataclass(frozen=True)
class DriverFacts:
    """The driver's version, the newest CUDA that it knows, and the names of the GPUs' compute modes, in their order."""

    version: str
    cuda_version: str
    compute_modes: tuple[str, ...]


def read_driver(gpus: Sequence[Gpu]) -> DriverFacts:
    """Return what NVML says of the driver. Raises GpuError."""
    _initialise()
    try:
        cuda = nvml.cuda_version()
        modes = tuple(_compute_mode(gpu) for gpu in gpus)
        return DriverFacts(nvml.driver_version(), f"{cuda // 1000}.{cuda % 1000 // 10}", modes)
    except NvmlError as error:
        raise GpuError(f"the NVIDIA driver does not describe itself: {error}; does nvidia-smi work?") from None
    finally:
        nvml.shutdown()


def _compute_mode(gpu: Gpu) -> str:
    names = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
    try:
        mode = nvml.compute_mode(_handle(gpu))
    except NvmlError:
        return "default"  # not every GPU can have another
    return names.get(mode, str(mode))


def read_processes(gpu: Gpu) -> dict[int, int]:
    """Return the bytes of a GPU's memory that each process holds, by the process's number. Raises GpuError.

    Processes whose memory NVML does not tell (or whose number, from inside a container) are not in it.
    """
    found = read_all_processes([gpu])[gpu.uuid]
    if isinstance(found, GpuError):
        raise found
    return found


def read_all_processes(gpus: Sequence[Gpu]) -> dict[str, dict[int, int] | GpuError]:
    """Return the same of several GPUs by UUID, or the error of each. Raises GpuError where there is no driver."""
    _initialise()
    try:
        return {gpu.uuid: _processes(gpu) for gpu in gpus}
    finally:
        nvml.shutdown()


def _processes(gpu: Gpu) -> dict[int, int] | GpuError:
    try:
        return nvml.compute_processes(_handle(gpu))
    except NvmlError as error:
        return GpuError(f"the NVIDIA driver does not list the processes on a GPU: {error}")


def read_utilization(gpu: Gpu, last_s: float) -> dict[int, float]:
    """Return how much of the GPU's time each process used in the last seconds, in percent, by PID. Raises GpuError."""
    _initialise()
    try:
        since_us = int((time.time() - last_s) * 1e6)
        samples = nvml.utilization_samples(_handle(gpu), since_us)
    except NvmlError as error:
        if error.code == nvml.NOT_FOUND:  # nobody used it
            return {}
        raise GpuError(f"the NVIDIA driver does not tell what processes use of a GPU: {error}") from None
    finally:
        nvml.shutdown()
    by_pid: dict[int, list[int]] = {}
    for pid, percent in samples:
        by_pid.setdefault(pid, []).append(percent)
    return {pid: sum(found) / len(found) for pid, found in by_pid.items() if pid}


class XidWatch:
    """The faults of a GPU (XID errors) that the driver reports while this is open.

    Each GPU has a set of events of its own, since waiting for those of several fails when one of them is lost.
    """

    def __init__(self, gpu: Gpu) -> None:
        """Begin to watch. Raises GpuError for a GPU that reports no faults."""
        _initialise()
        with ExitStack() as undo:
            undo.callback(nvml.shutdown)
            try:
                self._faults = nvml.Faults(_handle(gpu))
            except NvmlError as error:
                raise GpuError(f"GPU {gpu.uuid} reports no faults: {error}") from None
            undo.callback(self._faults.close)
            self._undo = undo.pop_all()

    def wait(self, timeout_ms: int) -> int | None:
        """Return an XID as soon as there is one, or None after `timeout_ms`."""
        try:
            return self._faults.wait(timeout_ms)
        except NvmlError as error:
            if error.code != nvml.TIMEOUT:  # the GPU is gone, as find_missing() tells
                time.sleep(timeout_ms / 1000)
            return None

    def close(self) -> None:
        """Watch no more."""
        self._undo.close()


def find_missing(gpus: Sequence[Gpu]) -> frozenset[str]:
    """Return the UUIDs of those that the driver does not list any more. Raises GpuError when there is no driver."""
    _initialise()
    try:
        return frozenset(gpu.uuid for gpu in gpus if not _answers(gpu))
    finally:
        nvml.shutdown()


def _answers(gpu: Gpu) -> bool:
    try:
        nvml.memory_bytes(_handle(gpu))
    except NvmlError:
        return False
    return True


def numa_node(gpu: Gpu, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node that a GPU is at, or None where the kernel knows none."""
    try:
        node = int((devices / gpu.pci_bus_id.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def usable(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those that programs can run on: MIG instances too, but no GPU in MIG mode without one."""
    return [gpu for gpu in gpus if not gpu.mig_enabled]


def _initialise() -> None:
    try:
        nvml.init()
    except NvmlError as error:
        words = _NO_DRIVER.get(error.code, _NO_DRIVER_AT_ALL).format(error)
        raise NoDriverError(f"{words} For a simulated GPU: --driver sim") from None


def _handle(gpu: Gpu) -> c_void_p:
    """Return NVML's handle of a GPU. An instance's is good only until somebody changes the instances of its GPU."""
    kept = _kept_handles
    if kept is None or gpu.mig_index is not None:
        return _find_handle(gpu)
    if gpu.uuid not in kept:
        kept[gpu.uuid] = _find_handle(gpu)
    return kept[gpu.uuid]


def _find_handle(gpu: Gpu) -> c_void_p:
    """Return the same from NVML, whose search by UUID fails as soon as any GPU of the host is lost."""
    try:
        return nvml.device_of_uuid(gpu.uuid)
    except NvmlError:
        handle = nvml.device_of_pci(gpu.pci_bus_id)
    if gpu.mig_index is not None:
        handle = nvml.mig_device(handle, gpu.mig_index)
    if nvml.uuid(handle) != gpu.uuid:
        raise NvmlError(nvml.NOT_FOUND)
    return handle


def _read_gpus_at(index: int) -> list[Gpu]:
    """Return the GPU, or its MIG instances."""
    handle = nvml.device_at(index)
    whole = _read_gpu(handle, index)
    return (_read_instances(handle, whole) or [whole]) if whole.mig_enabled else [whole]


def _read_instances(whole_handle: c_void_p, whole: Gpu) -> list[Gpu]:
    instances = []
    for mig_index in range(nvml.mig_device_count(whole_handle)):
        try:
            handle = nvml.mig_device(whole_handle, mig_index)
        except NvmlError as error:
            if error.code == nvml.NOT_FOUND:
                continue
            raise
        instance = replace(
            whole,
            uuid=nvml.uuid(handle),
            name=nvml.name(handle),
            memory_bytes=nvml.memory_bytes(handle),
            mig_enabled=False,
            mig_index=mig_index,
            mig_ids=nvml.mig_ids(handle),
        )
        instances.append(instance)
    return instances


def _read_gpu(handle: c_void_p, index: int) -> Gpu:
    mig_enabled = False
    with suppress(NvmlError):  # most GPUs do not know MIG
        mig_enabled = nvml.has_mig_mode(handle)
    return Gpu(
        index=index,
        uuid=nvml.uuid(handle),
        name=nvml.name(handle),
        memory_bytes=nvml.memory_bytes(handle),
        minor_number=nvml.minor_number(handle),
        pci_bus_id=nvml.pci_bus_id(handle),
        mig_enabled=mig_enabled,
    )


def _read_use(gpu: Gpu) -> GpuUse:
    try:
        handle = _handle(gpu)
        memory_used_bytes = nvml.memory_used_bytes(handle)
    except NvmlError as error:
        raise GpuError(
            f"the NVIDIA driver does not answer for GPU {gpu.number}: {error}; does nvidia-smi work?"
        ) from None
    utilization_percent = temperature_c = power_w = None
    with suppress(NvmlError):
        utilization_percent = nvml.utilization_percent(handle)
    with suppress(NvmlError):
        temperature_c = nvml.temperature_c(handle)
    with suppress(NvmlError):
        power_w = nvml.power_w(handle)
    return GpuUse(memory_used_bytes, utilization_percent, temperature_c, power_w)
