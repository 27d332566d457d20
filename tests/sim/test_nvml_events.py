"""Faults of simulated devices, as NVML reports them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as nvml
from simulated import MIB, UUID_A, UUID_B, Machine

from support.programs import Program


def devices() -> list[Any]:
    """Return the handles of both devices."""
    nvml.nvmlInit()
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]


def listen(device: Any) -> Any:
    """Return a set that hears of the device's errors."""
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
    return events


def write(line: str) -> None:
    """Have something happen to a device."""
    with open(os.environ["VGPUSIM_STATE"] + ".faults", "a") as file:
        file.write(line)


def wait(events: Any, timeout_ms: int = 20) -> tuple[str, int] | None:
    """Return the device and the number of the next error."""
    try:
        event = nvml.nvmlEventSetWait_v2(events, timeout_ms)
    except nvml.NVMLError_Timeout:
        return None
    return nvml.nvmlDeviceGetUUID(event.device), event.eventData


def memory(handle: Any) -> int | str:
    """Return how many MiB a device has."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
    except nvml.NVMLError_GpuIsLost:
        return "lost"


def faults(machine: Machine, program: Program) -> list[str]:
    return machine.python(program, start=False).splitlines()


def test_an_xid_is_an_event_of_its_device_once(machine: Machine) -> None:
    def program() -> None:
        events = listen(devices()[1])
        print(wait(events))
        write(f"xid {UUID_A} 79\n")
        print(wait(events))
        write(f"xid {UUID_B} 79\nxid {UUID_B} 48\nxid {UUID_B}")
        print(wait(events), wait(events), wait(events))
        write(" 31\n")
        print(wait(events))

    assert faults(machine, program) == ["None", "None", f"('{UUID_B}', 79) ('{UUID_B}', 48) None", f"('{UUID_B}', 31)"]


def test_a_set_does_not_report_what_was_before_it(machine: Machine) -> None:
    def program() -> None:
        print(wait(listen(devices()[1])))

    Path(machine.environment["VGPUSIM_STATE"] + ".faults").write_text(f"xid {UUID_B} 79\n")
    assert faults(machine, program) == ["None"]


def test_a_device_falls_off_the_bus_and_comes_back(machine: Machine) -> None:
    def program() -> None:
        first, second = devices()
        write(f"lost {UUID_B}\n")
        print(memory(first), memory(second))
        write(f"back {UUID_B}\n")
        print(memory(first), memory(second))

    assert faults(machine, program) == ["8192 lost", "8192 4096"]


def test_a_lost_device_has_no_handle_and_ends_a_search_and_a_wait(machine: Machine) -> None:
    def found(find: Callable[..., object], *what: object) -> bool | str:
        try:
            return bool(find(*what))
        except nvml.NVMLError_GpuIsLost:
            return "lost"

    def program() -> None:
        first, second = devices()
        events = listen(second)
        buses = [nvml.nvmlDeviceGetPciInfo(each).busId for each in (first, second)]
        write(f"lost {UUID_B}\n")
        print(nvml.nvmlDeviceGetCount(), *(found(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(2)))
        print(*(found(nvml.nvmlDeviceGetHandleByPciBusId, each) for each in buses))
        print(*(found(nvml.nvmlDeviceGetHandleByUUID, each) for each in (UUID_A, UUID_B)))
        print(found(wait, events))
        write(f"back {UUID_B}\nlost {UUID_A}\n")
        print(*(found(nvml.nvmlDeviceGetHandleByUUID, each) for each in (UUID_A, UUID_B)))
        print(wait(events))

    assert faults(machine, program) == ["2 True lost", "True lost", "True lost", "lost", "lost lost", "None"]
