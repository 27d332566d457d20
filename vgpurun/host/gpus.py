"""The GPUs of this host, from NVML. The only file that imports pynvml."""

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import GpuError, NoDriverError


class Gpu(NamedTuple):
    """A whole GPU, or a MIG instance, which is a device like another.

    `index` is NVML's, as nvidia-smi shows it on this host, and `minor_number` is N of /dev/nvidiaN: of an instance,
    those of the GPU that it is on. `mig_index` is the instance's own number there, `mig_ids` are those of its GPU
    instance and compute instance. `mig_enabled`: a GPU in MIG mode without an instance, where nothing can run.
    """

    index: int  # type: ignore[assignment]  # hides tuple's method, which nobody needs
    uuid: str
    name: str
    memory_bytes: int
    minor_number: int
    pci_bus_id: str
    mig_enabled: bool = False
    mig_index: int | None = None
    mig_ids: tuple[int, int] = (0, 0)

    @property
    def number(self) -> str:
        """How people name it: `0`, or `0:1` for the second instance on GPU 0, as nvidia-smi and CDI have it."""
        return str(self.index) if self.mig_index is None else f"{self.index}:{self.mig_index}"

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among others, in NVML's order."""
        return self.index, self.mig_index or 0


class GpuUse(NamedTuple):
    """A GPU at one moment as NVML sees it, with all programs. None is what it does not tell."""

    memory_used_bytes: int
    utilization_percent: int | None
    temperature_c: int | None = None
    power_w: float | None = None


def use_library(path: Path) -> None:
    """Take NVML from this file (the simulated driver's) instead of the host's. Raises GpuError."""
    try:
        # pynvml opens "libnvidia-ml.so.1"; the loader answers with what has that SONAME already.
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise GpuError(f"cannot load the simulated driver {path}: {error}; build it with: make -C lib sim") from None


class LostGpu(NamedTuple):
    """A GPU that the driver lists and cannot reach, as one that has fallen off the bus; `reason` is NVML's word."""

    index: int  # type: ignore[assignment]
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
    nvml = _initialised()
    found = Survey([], [])
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found.gpus.extend(_read_gpus_at(nvml, index))
            except nvml.NVMLError as error:
                found.lost.append(LostGpu(index, str(error)))
    except nvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver cannot list the GPUs: {error}; does nvidia-smi work?") from None
    finally:
        nvml.nvmlShutdown()
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
    nvml = _initialised()
    try:
        return [_read_use(nvml, gpu) for gpu in gpus]
    except nvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver does not answer: {error}; does nvidia-smi work?") from None
    finally:
        nvml.nvmlShutdown()


@contextmanager
def held_open() -> Iterator[None]:
    """Keep NVML initialised meanwhile, so that asking it again and again costs little. Raises GpuError at the start."""
    nvml = _initialised()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()  # it counts those who have initialised it


@contextmanager
def asked(gpu: Gpu) -> Iterator[tuple[Any, Any]]:
    """Yield NVML and its handle of a GPU, for what has a file of its own. Raises GpuError."""
    nvml = _initialised()
    try:
        try:
            handle = _handle(nvml, gpu)
        except nvml.NVMLError as error:
            raise GpuError(f"GPU {gpu.number} cannot be used: {error}") from None
        yield nvml, handle
    finally:
        nvml.nvmlShutdown()


class DriverFacts(NamedTuple):
    """The driver's version, the newest CUDA that it knows, and the names of the GPUs' compute modes, in their order."""

    version: str
    cuda_version: str
    compute_modes: tuple[str, ...]


def read_driver(gpus: Sequence[Gpu]) -> DriverFacts:
    """Return what NVML says of the driver. Raises GpuError."""
    nvml = _initialised()
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        modes = tuple(_compute_mode(nvml, gpu) for gpu in gpus)
        version = _text(nvml.nvmlSystemGetDriverVersion())
        return DriverFacts(version, f"{cuda // 1000}.{cuda % 1000 // 10}", modes)
    except nvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver does not describe itself: {error}; does nvidia-smi work?") from None
    finally:
        nvml.nvmlShutdown()


def _compute_mode(nvml: Any, gpu: Gpu) -> str:
    names = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
    try:
        mode = int(nvml.nvmlDeviceGetComputeMode(_handle(nvml, gpu)))
    except nvml.NVMLError:
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
    nvml = _initialised()
    try:
        return {gpu.uuid: _processes(nvml, gpu) for gpu in gpus}
    finally:
        nvml.nvmlShutdown()


def _processes(nvml: Any, gpu: Gpu) -> dict[int, int] | GpuError:
    try:
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(_handle(nvml, gpu))
        return {int(each.pid): int(each.usedGpuMemory) for each in listed if each.pid and each.usedGpuMemory}
    except nvml.NVMLError as error:
        return GpuError(f"the NVIDIA driver does not list the processes on a GPU: {error}")


def read_utilization(gpu: Gpu, last_s: float) -> dict[int, float]:
    """Return how much of the GPU's time each process used in the last seconds, in percent, by PID. Raises GpuError."""
    nvml = _initialised()
    try:
        since_us = int((time.time() - last_s) * 1e6)
        samples = nvml.nvmlDeviceGetProcessUtilization(_handle(nvml, gpu), since_us)
    except nvml.NVMLError_NotFound:  # nobody used it
        return {}
    except nvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver does not tell what processes use of a GPU: {error}") from None
    finally:
        nvml.nvmlShutdown()
    by_pid: dict[int, list[int]] = {}
    for each in samples:
        by_pid.setdefault(int(each.pid), []).append(int(each.smUtil))
    return {pid: sum(found) / len(found) for pid, found in by_pid.items() if pid}


class XidWatch:
    """The faults of a GPU (XID errors) that the driver reports while this is open.

    Each GPU has a set of events of its own, since waiting for those of several fails when one of them is lost.
    """

    def __init__(self, gpu: Gpu) -> None:
        """Begin to watch. Raises GpuError for a GPU that reports no faults."""
        self._nvml = _initialised()
        with ExitStack() as undo:
            undo.callback(self._nvml.nvmlShutdown)
            try:
                self._events = self._nvml.nvmlEventSetCreate()
                undo.callback(self._free)
                kind = self._nvml.nvmlEventTypeXidCriticalError
                self._nvml.nvmlDeviceRegisterEvents(_handle(self._nvml, gpu), kind, self._events)
            except self._nvml.NVMLError as error:
                raise GpuError(f"GPU {gpu.uuid} reports no faults: {error}") from None
            self._undo = undo.pop_all()

    def wait(self, timeout_ms: int) -> int | None:
        """Return an XID as soon as there is one, or None after `timeout_ms`."""
        try:
            return int(self._nvml.nvmlEventSetWait_v2(self._events, timeout_ms).eventData)
        except self._nvml.NVMLError_Timeout:
            return None
        except self._nvml.NVMLError:  # the GPU is gone, as find_missing() tells
            time.sleep(timeout_ms / 1000)
            return None

    def close(self) -> None:
        """Watch no more."""
        self._undo.close()

    def _free(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._events)


def find_missing(gpus: Sequence[Gpu]) -> frozenset[str]:
    """Return the UUIDs of those that the driver does not list any more. Raises GpuError when there is no driver."""
    nvml = _initialised()
    try:
        return frozenset(gpu.uuid for gpu in gpus if not _answers(nvml, gpu))
    finally:
        nvml.nvmlShutdown()


def _answers(nvml: Any, gpu: Gpu) -> bool:
    try:
        nvml.nvmlDeviceGetMemoryInfo(_handle(nvml, gpu))
    except nvml.NVMLError:
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


def _initialised() -> Any:
    try:
        import pynvml
    except ImportError:
        raise GpuError("the Python package nvidia-ml-py is missing: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriverError(
            f"no NVIDIA driver on this host ({error}); does nvidia-smi work? For a simulated GPU: --driver sim"
        ) from None
    return pynvml


def _handle(nvml: Any, gpu: Gpu) -> Any:
    """Return NVML's handle of a GPU. Its search by UUID fails as soon as any GPU of the host is lost."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    except nvml.NVMLError:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
    if gpu.mig_index is not None:
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, gpu.mig_index)
    if _text(nvml.nvmlDeviceGetUUID(handle)) != gpu.uuid:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)
    return handle


def _read_gpus_at(nvml: Any, index: int) -> list[Gpu]:
    """Return the GPU, or its MIG instances."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    whole = _read_gpu(nvml, handle, index)
    return (_read_instances(nvml, handle, whole) or [whole]) if whole.mig_enabled else [whole]


def _read_instances(nvml: Any, whole_handle: Any, whole: Gpu) -> list[Gpu]:
    instances = []
    for mig_index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole_handle)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole_handle, mig_index)
        except nvml.NVMLError_NotFound:
            continue
        instance = whole._replace(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            mig_enabled=False,
            mig_index=mig_index,
            mig_ids=(
                int(nvml.nvmlDeviceGetGpuInstanceId(handle)),
                int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
            ),
        )
        instances.append(instance)
    return instances


def _read_gpu(nvml: Any, handle: Any, index: int) -> Gpu:
    mig_enabled = False
    with suppress(nvml.NVMLError):  # most GPUs do not know MIG
        mig_enabled = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        minor_number=int(nvml.nvmlDeviceGetMinorNumber(handle)),
        pci_bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        mig_enabled=mig_enabled,
    )


def _read_use(nvml: Any, gpu: Gpu) -> GpuUse:
    handle = _handle(nvml, gpu)
    utilization_percent = temperature_c = power_w = None
    with suppress(nvml.NVMLError):
        utilization_percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with suppress(nvml.NVMLError):
        temperature_c = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    with suppress(nvml.NVMLError):
        power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return GpuUse(_used_bytes(nvml, handle), utilization_percent, temperature_c, power_w)


def _used_bytes(nvml: Any, handle: Any) -> int:
    """Read the memory in use; the first version of the call also counts what the driver keeps for itself."""
    with suppress(nvml.NVMLError):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
