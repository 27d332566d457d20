"""Our description of NVML agrees with that of NVIDIA's own package for Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pynvml
import pytest

from vgpurun.errors import GpuError, NoDriverError
from vgpurun.host import gpus, memory_limits, nvml

STRUCTURES = {
    nvml._Memory: pynvml.c_nvmlMemory_t,
    nvml._Memory2: pynvml.c_nvmlMemory_v2_t,
    nvml._Utilization: pynvml.c_nvmlUtilization_t,
    nvml._Process: pynvml.c_nvmlProcessInfo_v3_t,
    nvml._Sample: pynvml.c_nvmlProcessUtilizationSample_t,
    nvml._Event: pynvml.c_nvmlEventData_t,
    nvml._Pci: pynvml.nvmlPciInfo_t,
    memory_limits._Set: pynvml.c_nvmlSetMemoryLimits_v1_t,
    memory_limits._Get: pynvml.c_nvmlGetMemoryLimits_v1_t,
}


@pytest.mark.parametrize("ours", STRUCTURES, ids=lambda each: each.__name__)
def test_layout(ours: type[ctypes.Structure]) -> None:
    theirs = STRUCTURES[ours]
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    for name, *_ in ours._fields_:
        if name != "numbers":  # five at once
            assert getattr(ours, name).offset == getattr(theirs, name).offset, name


@pytest.mark.parametrize(
    "name",
    [
        "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "INSUFFICIENT_SIZE", "DRIVER_NOT_LOADED", "TIMEOUT",
        "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND", "LIB_RM_VERSION_MISMATCH",
    ],
)  # fmt: skip
def test_codes(name: str) -> None:
    assert getattr(nvml, name) == getattr(pynvml, f"NVML_ERROR_{name}")


def test_other_constants() -> None:
    assert pynvml.nvmlEventTypeXidCriticalError == nvml._XID
    assert nvml._TEMPERATURE_OF_GPU == pynvml.NVML_TEMPERATURE_GPU
    assert pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX == memory_limits.NO_LIMIT
    assert max(pynvml.NVML_DEVICE_NAME_V2_BUFFER_SIZE, pynvml.NVML_DEVICE_UUID_V2_BUFFER_SIZE) <= nvml._TEXT_BYTES
    assert pynvml.NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE <= nvml._TEXT_BYTES
    assert pynvml.nvmlMemory_v2 == ctypes.sizeof(nvml._Memory2) | 2 << 24


def test_a_host_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", None)
    monkeypatch.setattr(nvml, "load", _not_there)
    with pytest.raises(nvml.NvmlError, match="NVML Shared Library Not Found") as caught:
        nvml.init()
    assert caught.value.code == nvml.LIBRARY_NOT_FOUND


def _not_there() -> None:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")


Driver = Callable[..., None]
UUID = b"GPU-00000000-0000-0000-0000-000000000007"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Makes a driver of these functions, beside what each has; a number is what a function answers, with no effect."""

    def text(*arguments: object) -> int:
        arguments[-2].value = UUID  # type: ignore[attr-defined]
        return 0

    def one(count: object) -> int:
        count._obj.value = 1  # type: ignore[attr-defined]
        return 0

    def make(**functions: Callable[..., int] | int) -> None:
        words = {getattr(pynvml, each): each for each in dir(pynvml) if each.startswith("NVML_ERROR_")}
        all_of_them: dict[str, Callable[..., object] | int] = {
            "nvmlErrorString": lambda code: words[code].encode(),
            "nvmlInit_v2": 0, "nvmlShutdown": 0, "nvmlDeviceGetHandleByIndex_v2": 0, "nvmlDeviceGetMinorNumber": 0,
            "nvmlDeviceGetCount_v2": one,
            "nvmlDeviceGetUUID": text, "nvmlDeviceGetName": text, "nvmlDeviceGetPciInfo_v3": 0,
            "nvmlDeviceGetHandleByUUID": 0, "nvmlDeviceGetMemoryInfo": 0,
        }  # fmt: skip
        made = {
            name: each if callable(each) else (lambda *_, code=each: code)
            for name, each in (all_of_them | functions).items()
        }
        monkeypatch.setattr(nvml, "_library", SimpleNamespace(**made))

    return make


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "modprobe nvidia"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart the host"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "/dev/nvidia"),
        (pynvml.NVML_ERROR_UNKNOWN, "does nvidia-smi work"),
    ],
)
def test_why_there_is_no_driver(driver: Driver, code: int, words: str) -> None:
    driver(nvmlInit_v2=code)
    with pytest.raises(NoDriverError, match=words) as caught:
        gpus.survey()
    assert "--driver sim" in str(caught.value)


@pytest.mark.parametrize("asked", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMinorNumber"])
def test_a_gpu_of_which_something_is_not_told(driver: Driver, asked: str) -> None:
    driver(**{asked: nvml.NOT_SUPPORTED})
    with pytest.raises(GpuError, match=rf"GPU 0 cannot be used: .*\({asked}\), as under WSL2, .*docs/faq.md"):
        gpus.survey()


def test_a_gpu_that_is_lost_is_named(driver: Driver) -> None:
    driver()
    (gpu,) = gpus.survey().gpus
    driver(nvmlDeviceGetMemoryInfo=pynvml.NVML_ERROR_GPU_IS_LOST, nvmlShutdown=pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(GpuError, match="GPU 0: NVML_ERROR_GPU_IS_LOST"):
        gpus.read_use([gpu])


def test_a_text_without_an_end(driver: Driver) -> None:
    def name(_: object, found: ctypes.Array[ctypes.c_char], size: ctypes.c_uint) -> int:
        found.raw = b"N" * size.value
        return 0

    driver(nvmlDeviceGetName=name)
    assert gpus.survey().gpus[0].name == "N" * nvml._TEXT_BYTES


def listing(row_bytes: int) -> Callable[..., int]:
    """A driver's list of two processes, in rows of that size."""

    def ask(_: object, count: object, rows: object) -> int:
        room, count._obj.value = count._obj.value, 2  # type: ignore[attr-defined]
        if room < 2:
            return nvml.INSUFFICIENT_SIZE
        for place, pid in enumerate((11, 12)):
            row = nvml._Process(pid, pid << 20, 0xFFFFFFFF, 0xFFFFFFFF)
            ctypes.memmove(ctypes.addressof(rows) + place * row_bytes, bytes(row), ctypes.sizeof(row))  # type: ignore[arg-type]
        return 0

    return ask


@pytest.mark.parametrize(
    "functions",
    [
        {"nvmlDeviceGetComputeRunningProcesses_v2": listing(24)},
        {
            "nvmlDeviceGetComputeRunningProcesses_v2": listing(24),
            "nvmlDeviceGetComputeRunningProcesses_v3": listing(32),
        },
        {"nvmlDeviceGetComputeRunningProcesses_v3": listing(24), "nvmlDeviceGetRunningProcessDetailList": 0},
    ],
    ids=["before 510", "535.54", "newer"],
)
def test_the_processes_of_each_driver(driver: Driver, functions: dict[str, Callable[..., int]]) -> None:
    driver(**functions)
    assert nvml.compute_processes(nvml.device_at(0)) == {11: 11 << 20, 12: 12 << 20}


@pytest.mark.parametrize(("processes", "asked"), [(0, 1), (nvml._ROWS, 1), (nvml._ROWS + 1, 2)])
def test_all_processes_are_told_by_the_fewest_questions(driver: Driver, processes: int, asked: int) -> None:
    rooms = []

    def ask(_: object, count: object, rows: object) -> int:
        room, count._obj.value = count._obj.value, processes  # type: ignore[attr-defined]
        rooms.append(room)
        if room < processes:
            return nvml.INSUFFICIENT_SIZE
        for place in range(processes):
            rows[place] = nvml._Process(place + 1, 1 << 20)  # type: ignore[index]
        return 0

    driver(nvmlDeviceGetComputeRunningProcesses_v2=ask)
    assert nvml.compute_processes(nvml.device_at(0)) == dict.fromkeys(range(1, processes + 1), 1 << 20)
    assert len(rooms) == asked


def test_a_handle_is_kept_only_while_it_is_good(driver: Driver) -> None:
    """NVML names GPUs anew after it was closed, and instances whenever somebody changes them."""
    asked = []

    def find(uuid: bytes, _: object) -> int:
        asked.append(uuid)
        return 0

    driver(nvmlDeviceGetHandleByUUID=find, nvmlDeviceGetComputeRunningProcesses_v2=0)
    (gpu,) = gpus.survey().gpus
    for mig_index, questions in ((None, 1), (0, 2)):
        for _ in range(2):
            asked.clear()
            with gpus.held_open():
                gpus.read_processes(replace(gpu, mig_index=mig_index))
                gpus.read_processes(replace(gpu, mig_index=mig_index))
            assert len(asked) == questions
    asked.clear()
    gpus.read_processes(gpu)
    gpus.read_processes(gpu)
    assert len(asked) == 2


def test_an_older_driver_has_no_second_version_of_the_memory(driver: Driver) -> None:
    def memory(_: object, found: object) -> int:
        found._obj.used = 5  # type: ignore[attr-defined]
        return 0

    driver(nvmlDeviceGetMemoryInfo=memory)
    assert nvml.memory_used_bytes(nvml.device_at(0)) == 5


def test_samples_that_are_no_percentages_are_left_out(driver: Driver) -> None:
    def samples(_: object, rows: object, count: object, __: object) -> int:
        count._obj.value = 2  # type: ignore[attr-defined]
        if rows is not None:
            rows[0], rows[1] = nvml._Sample(11, 0, 40), nvml._Sample(12, 0, 1717986918)  # type: ignore[index]
        return 0 if rows is not None else nvml.INSUFFICIENT_SIZE

    driver(nvmlDeviceGetProcessUtilization=samples)
    assert nvml.utilization_samples(nvml.device_at(0), 0) == [(11, 40)]
