"""Our description of NVML agrees with that of NVIDIA's own package for Python."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from vgpurun.host import nvml

STRUCTURES = {
    nvml._Memory: pynvml.c_nvmlMemory_t,
    nvml._Memory2: pynvml.c_nvmlMemory_v2_t,
    nvml._Utilization: pynvml.c_nvmlUtilization_t,
    nvml._Process: pynvml.c_nvmlProcessInfo_v3_t,
    nvml._Sample: pynvml.c_nvmlProcessUtilizationSample_t,
    nvml._Event: pynvml.c_nvmlEventData_t,
    nvml._Pci: pynvml.nvmlPciInfo_t,
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
        "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "INSUFFICIENT_SIZE", "TIMEOUT", "LIBRARY_NOT_FOUND",
        "FUNCTION_NOT_FOUND",
    ],
)  # fmt: skip
def test_codes(name: str) -> None:
    assert getattr(nvml, name) == getattr(pynvml, f"NVML_ERROR_{name}")


def test_other_constants() -> None:
    assert pynvml.nvmlEventTypeXidCriticalError == nvml._XID
    assert nvml._TEMPERATURE_OF_GPU == pynvml.NVML_TEMPERATURE_GPU
    assert pynvml.nvmlMemory_v2 == ctypes.sizeof(nvml._Memory2) | 2 << 24


def test_a_host_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", None)
    monkeypatch.setattr(nvml, "load", _not_there)
    with pytest.raises(nvml.NvmlError, match="NVML Shared Library Not Found") as caught:
        nvml.init()
    assert caught.value.code == nvml.LIBRARY_NOT_FOUND


def _not_there() -> None:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")
