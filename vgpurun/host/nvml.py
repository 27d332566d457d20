"""NVML, as far as vgpurun asks it, by ctypes: functions of the driver's library under shorter names.

NVIDIA's own package describes all of NVML, and is a seventh of what a launch would import. Functions raise NvmlError.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_char, c_char_p, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any, TypeVar

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, TIMEOUT = 3, 4, 6, 7, 9, 10
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, LIB_RM_VERSION_MISMATCH = 12, 13, 18
UNKNOWN_TO_DRIVER = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)

_NOT_AVAILABLE = 2**64 - 1  # in the place of bytes
_TEXT_BYTES = 96  # NVML's own texts have that many at most
_XID = 8  # nvmlEventTypeXidCriticalError
_TEMPERATURE_OF_GPU = 0
_ROWS = 128  # are mostly enough; drivers have given up to 100 samples
_SPARE_ROWS = 32  # for what begins between the answer how many there are and the question for them
_MOST_PERCENT = 100  # drivers have given samples that were no percentages

_Row = TypeVar("_Row", bound=ctypes.Structure)
_library: ctypes.CDLL | None = None


class NvmlError(Exception):
    """NVML's refusal: its code, and its words for it; with the function where that is what is missing."""

    def __init__(self, code: int, function: str = "") -> None:
        super().__init__(f"{_words(code)}{f' ({function})' * (code in UNKNOWN_TO_DRIVER and bool(function))}")
        self.code = code


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Memory2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong),
        ("used", c_ulonglong),
    )  # fmt: skip


class _Pci(ctypes.Structure):
    _fields_ = (("busIdLegacy", c_char * 16), ("numbers", c_uint * 5), ("busId", c_char * 32))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint), ("usedGpuMemory", c_ulonglong), ("gpuInstanceId", c_uint), ("computeInstanceId", c_uint),
    )  # fmt: skip


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint), ("timeStamp", c_ulonglong), ("smUtil", c_uint), ("memUtil", c_uint), ("encUtil", c_uint),
        ("decUtil", c_uint),
    )  # fmt: skip


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p), ("eventType", c_ulonglong), ("eventData", c_ulonglong), ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )  # fmt: skip


def load(path: Path | str = "libnvidia-ml.so.1") -> None:
    """Take NVML from a file, or where the loader finds it; the first call has decided. Raises OSError."""
    global _library  # for the whole process, like NVML itself
    if _library is None:
        _library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        _library.nvmlErrorString.restype = c_char_p


def call(name: str, *arguments: Any) -> None:
    """Call a function of NVML by its C name."""
    function = getattr(_library, name, None)
    code = FUNCTION_NOT_FOUND if function is None else function(*arguments)
    if code:
        raise NvmlError(code, name)


def has(name: str) -> bool:
    """Ask whether the driver's NVML has a function."""
    return hasattr(_library, name)


def init() -> None:
    """Initialise NVML; it counts how often."""
    try:
        load()
    except OSError:
        raise NvmlError(LIBRARY_NOT_FOUND) from None
    call("nvmlInit_v2")


def shutdown() -> None:
    """Undo one init(). Raises nothing: what matters has been answered, or refused, before."""
    with suppress(NvmlError):
        call("nvmlShutdown")


def driver_version() -> str:
    """Return the driver's version."""
    return _text("nvmlSystemGetDriverVersion")


def cuda_version() -> int:
    """Return the newest CUDA that the driver knows: 12040 is 12.4."""
    return _number("nvmlSystemGetCudaDriverVersion")


def device_count() -> int:
    """Return how many GPUs the driver lists."""
    return _number("nvmlDeviceGetCount_v2")


def device_at(index: int) -> c_void_p:
    """Return the handle of a GPU by its index."""
    return _device("nvmlDeviceGetHandleByIndex_v2", index)


def device_of_uuid(uuid: str) -> c_void_p:
    """Return the handle of a GPU or MIG instance. Fails as soon as any GPU of the host is lost."""
    return _device("nvmlDeviceGetHandleByUUID", uuid.encode())


def device_of_pci(bus_id: str) -> c_void_p:
    """Return the handle of a GPU by its PCI bus ID."""
    return _device("nvmlDeviceGetHandleByPciBusId_v2", bus_id.encode())


def mig_device(device: c_void_p, index: int) -> c_void_p:
    """Return the handle of a MIG instance."""
    return _device("nvmlDeviceGetMigDeviceHandleByIndex", device, index)


def mig_device_count(device: c_void_p) -> int:
    """Return how many MIG instances a GPU may have."""
    return _number("nvmlDeviceGetMaxMigDeviceCount", device)


def mig_ids(device: c_void_p) -> tuple[int, int]:
    """Return a MIG instance's GPU instance and compute instance."""
    return _number("nvmlDeviceGetGpuInstanceId", device), _number("nvmlDeviceGetComputeInstanceId", device)


def has_mig_mode(device: c_void_p) -> bool:
    """Ask whether a GPU is in MIG mode; most know no such thing and refuse."""
    mode, next_one = c_uint(), c_uint()
    call("nvmlDeviceGetMigMode", device, byref(mode), byref(next_one))
    return mode.value == 1


def uuid(device: c_void_p) -> str:
    """Return a device's UUID."""
    return _text("nvmlDeviceGetUUID", device)


def name(device: c_void_p) -> str:
    """Return a device's product name."""
    return _text("nvmlDeviceGetName", device)


def minor_number(device: c_void_p) -> int:
    """Return N of /dev/nvidiaN."""
    return _number("nvmlDeviceGetMinorNumber", device)


def pci_bus_id(device: c_void_p) -> str:
    """Return where a GPU is on the PCI bus."""
    found = _Pci()
    call("nvmlDeviceGetPciInfo_v3", device, byref(found))
    return str(found.busId.decode(errors="replace"))


def memory_bytes(device: c_void_p) -> int:
    """Return how much memory a device has."""
    return int(_memory(device).total)


def memory_used_bytes(device: c_void_p) -> int:
    """Return how much of it is used; an older driver also counts what it keeps for itself."""
    found = _Memory2(version=ctypes.sizeof(_Memory2) | 2 << 24)
    try:
        call("nvmlDeviceGetMemoryInfo_v2", device, byref(found))
    except NvmlError:
        return int(_memory(device).used)
    return int(found.used)


def utilization_percent(device: c_void_p) -> int:
    """Return in what part of the last period kernels ran on a GPU."""
    found = _Utilization()
    call("nvmlDeviceGetUtilizationRates", device, byref(found))
    return int(found.gpu)


def temperature_c(device: c_void_p) -> int:
    """Return a GPU's temperature."""
    found = c_uint()
    call("nvmlDeviceGetTemperature", device, _TEMPERATURE_OF_GPU, byref(found))
    return found.value


def power_w(device: c_void_p) -> float:
    """Return what a GPU draws."""
    return _number("nvmlDeviceGetPowerUsage", device) / 1000


def compute_mode(device: c_void_p) -> int:
    """Return a GPU's compute mode."""
    return _number("nvmlDeviceGetComputeMode", device)


def compute_processes(device: c_void_p) -> dict[int, int]:
    """Return the bytes that each process has of a GPU by PID, where the driver tells both."""
    # Version 2 has the same layout. Version 3 of the drivers 535.43 to 535.97 writes rows of 32 bytes, past the end of
    # ours; drivers that can list details are newer.
    version = "v3" if has("nvmlDeviceGetRunningProcessDetailList") else "v2"
    ask = f"nvmlDeviceGetComputeRunningProcesses_{version}"
    found = _rows(_Process, lambda count, rows: call(ask, device, count, rows))
    bytes_by_pid = {each.pid: each.usedGpuMemory for each in found if each.usedGpuMemory != _NOT_AVAILABLE}
    return {pid: size_bytes for pid, size_bytes in bytes_by_pid.items() if pid and size_bytes}


def utilization_samples(device: c_void_p, since_us: int) -> list[tuple[int, int]]:
    """Return the PID and the percentage of each sample of a process that used a GPU since then."""
    ask, since = "nvmlDeviceGetProcessUtilization", c_ulonglong(since_us)
    found = _rows(_Sample, lambda count, rows: call(ask, device, rows, count, since))
    return [(each.pid, each.smUtil) for each in found if each.smUtil <= _MOST_PERCENT]


class Faults:
    """The faults (XID) of one GPU, from its making until close()."""

    def __init__(self, device: c_void_p) -> None:
        self._events = _device("nvmlEventSetCreate")
        try:
            call("nvmlDeviceRegisterEvents", device, c_ulonglong(_XID), self._events)
        except NvmlError:
            self.close()
            raise

    def wait(self, timeout_ms: int) -> int:
        """Return the next one's number; TIMEOUT where none comes."""
        found = _Event()
        call("nvmlEventSetWait_v2", self._events, byref(found), timeout_ms)
        return int(found.eventData)

    def close(self) -> None:
        """Watch no more. Raises nothing."""
        with suppress(NvmlError):
            call("nvmlEventSetFree", self._events)


def _words(code: int) -> str:
    if _library is None:
        return "NVML Shared Library Not Found"
    return (_library.nvmlErrorString(code) or b"").decode(errors="replace")


def _rows(kind: type[_Row], ask: Callable[[Any, Any], None]) -> list[_Row]:
    """Ask for all rows, and once more where there is not enough room for as many as NVML then says."""
    count = c_uint(_ROWS)
    rows = (kind * _ROWS)()
    try:
        ask(byref(count), rows)
    except NvmlError as error:
        if error.code != INSUFFICIENT_SIZE:
            raise
        rows = (kind * (count.value + _SPARE_ROWS))()
        count = c_uint(len(rows))
        ask(byref(count), rows)
    return rows[: count.value]


def _number(function: str, *arguments: Any) -> int:
    found = c_uint()
    call(function, *arguments, byref(found))
    return found.value


def _text(function: str, *arguments: Any) -> str:
    found = ctypes.create_string_buffer(_TEXT_BYTES)
    call(function, *arguments, found, c_uint(_TEXT_BYTES))
    return found.value.decode(errors="replace")


def _device(function: str, *arguments: Any) -> c_void_p:
    found = c_void_p()
    call(function, *arguments, byref(found))
    return found


def _memory(device: c_void_p) -> _Memory:
    found = _Memory()
    call("nvmlDeviceGetMemoryInfo", device, byref(found))
    return found
