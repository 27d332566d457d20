"""Faults of simulated devices, as NVML reports them."""

from __future__ import annotations

from pathlib import Path

from simulated import UUID_A, UUID_B, Machine

PROGRAM = """
import pynvml as nvml
nvml.nvmlInit()
first, second = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
events = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(second, nvml.nvmlEventTypeXidCriticalError, events)
def write(line):
    with open(os.environ["VGPUSIM_STATE"] + ".faults", "a") as file:
        file.write(line)
def wait(timeout_ms=20):
    try:
        event = nvml.nvmlEventSetWait_v2(events, timeout_ms)
        return nvml.nvmlDeviceGetUUID(event.device), event.eventData
    except nvml.NVMLError_Timeout:
        return None
def memory(handle):
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB
    except nvml.NVMLError_GpuIsLost:
        return "lost"
"""


def faults(machine: Machine, code: str) -> list[str]:
    return machine.python(PROGRAM + code, start=False).splitlines()


def test_an_xid_is_an_event_of_its_device_once(machine: Machine) -> None:
    code = f"""
print(wait())
write("xid {UUID_A} 79\\n")
print(wait())
write("xid {UUID_B} 79\\nxid {UUID_B} 48\\nxid {UUID_B}")
print(wait(), wait(), wait())
write(" 31\\n")
print(wait())
"""
    assert faults(machine, code) == ["None", "None", f"('{UUID_B}', 79) ('{UUID_B}', 48) None", f"('{UUID_B}', 31)"]


def test_a_set_does_not_report_what_was_before_it(machine: Machine) -> None:
    Path(machine.environment["VGPUSIM_STATE"] + ".faults").write_text(f"xid {UUID_B} 79\n")
    assert faults(machine, "print(wait())") == ["None"]


def test_a_device_falls_off_the_bus_and_comes_back(machine: Machine) -> None:
    code = f"""
write("lost {UUID_B}\\n")
print(memory(first), memory(second))
write("back {UUID_B}\\n")
print(memory(first), memory(second))
"""
    assert faults(machine, code) == ["8192 lost", "8192 4096"]


def test_a_lost_device_has_no_handle_and_ends_a_search_and_a_wait(machine: Machine) -> None:
    code = f"""
def found(find, *what):
    try:
        return bool(find(*what))
    except nvml.NVMLError_GpuIsLost:
        return "lost"
buses = [nvml.nvmlDeviceGetPciInfo(each).busId for each in (first, second)]
write("lost {UUID_B}\\n")
print(nvml.nvmlDeviceGetCount(), *(found(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(2)))
print(*(found(nvml.nvmlDeviceGetHandleByPciBusId, each) for each in buses))
print(*(found(nvml.nvmlDeviceGetHandleByUUID, each) for each in ("{UUID_A}", "{UUID_B}")))
print(found(wait))
write("back {UUID_B}\\nlost {UUID_A}\\n")
print(*(found(nvml.nvmlDeviceGetHandleByUUID, each) for each in ("{UUID_A}", "{UUID_B}")))
print(wait())
"""
    assert faults(machine, code) == ["2 True lost", "True lost", "True lost", "lost", "lost lost", "None"]
