"""The simulated NVML, through pynvml as programs use it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pynvml as nvml
import pytest
from simulated import MIB, UUID_A, UUID_B, Machine, driver

from cuda_driver import Driver, byref
from support.programs import text_of


def test_devices(machine: Machine) -> None:
    def program() -> None:
        nvml.nvmlInit()
        first, second = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        print(nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetName(second), nvml.nvmlDeviceGetUUID(second))
        print(
            nvml.nvmlSystemGetDriverVersion(),
            nvml.nvmlSystemGetCudaDriverVersion(),
            nvml.nvmlDeviceGetMinorNumber(second),
        )
        print(nvml.nvmlDeviceGetPciInfo(second).busId, nvml.nvmlDeviceGetCudaComputeCapability(second))
        for handle in (
            nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(second)),
            nvml.nvmlDeviceGetHandleByPciBusId("00000000:02:00.0"),
        ):
            assert nvml.nvmlDeviceGetIndex(handle) == 1
        for call in (
            lambda: nvml.nvmlDeviceGetHandleByIndex(2),
            lambda: nvml.nvmlDeviceGetHandleByUUID("GPU-nothing"),
            lambda: nvml.nvmlDeviceGetTemperature(first, 0),
            lambda: nvml.nvmlDeviceGetPowerUsage(first),
            lambda: nvml.nvmlDeviceGetNvLinkState(first, 0),
        ):
            try:
                call()
                print("no error")
            except nvml.NVMLError as error:
                print(type(error).__name__)
        nvml.nvmlShutdown()
        try:
            nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            print(type(error).__name__, error)

    lines = machine.python(program, start=False).splitlines()
    assert lines[0] == f"2 Simulated B {UUID_B}"
    assert lines[1] == "580.0 13000 1"
    assert lines[2] == "00000000:02:00.0 (9, 0)"
    assert lines[3:] == [
        "NVMLError_InvalidArgument",
        "NVMLError_NotFound",
        "NVMLError_NotSupported",
        "NVMLError_NotSupported",
        "NVMLError_FunctionNotFound",
        "NVMLError_Uninitialized Uninitialized",
    ]


def test_memory_and_processes(machine: Machine) -> None:
    def program() -> None:
        nvml.nvmlInit()
        first, second = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        assert nvml.nvmlDeviceGetMemoryInfo(first).used == 518 * MIB
        driver.mem_alloc(100 * MIB)
        driver.context_create(1)
        for handle, used in ((first, 618), (second, 100)):
            for version in (None, nvml.nvmlMemory_v2):
                memory = nvml.nvmlDeviceGetMemoryInfo(handle, version)
                assert memory.used == used * MIB and memory.free == memory.total - memory.used
            for query in (nvml.nvmlDeviceGetComputeRunningProcesses_v2, nvml.nvmlDeviceGetComputeRunningProcesses_v3):
                processes = query(handle)
                assert [(p.pid, p.usedGpuMemory) for p in processes] == [(os.getpid(), used * MIB)]
            assert nvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []
        assert sys.executable.split("/")[-1] in nvml.nvmlSystemGetProcessName(os.getpid())
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        get = library.nvmlDeviceGetComputeRunningProcesses
        assert get(first, byref(count), None) == 7 and count.value == 1, "insufficient size, and how much is needed"

        class Memory(ctypes.Structure):
            _fields_ = [("version", ctypes.c_uint), ("values", ctypes.c_uint64 * 4)]

        assert library.nvmlDeviceGetMemoryInfo_v2(first, byref(Memory())) == 25, "the version is checked"

    machine.python(program)


def test_utilization_is_the_share_of_the_last_second(machine: Machine) -> None:
    def program() -> None:
        nvml.nvmlInit()
        first, second = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        assert nvml.nvmlDeviceGetUtilizationRates(first).gpu == 0
        kernel = driver.kernel("spin_5ms")
        ends, asked_s, said_s = [], 0, 1
        while said_s - asked_s > 0.01:  # a busy machine has held us up while we asked: which second was it?
            until = time.monotonic() + 1.2
            while time.monotonic() < until:
                driver.launch(kernel)
                driver.synchronize()
                ends.append(time.monotonic())
                time.sleep(0.005)
            asked_s = time.monotonic()
            rates = [nvml.nvmlDeviceGetUtilizationRates(device).gpu for device in (first, second)]
            samples = nvml.nvmlDeviceGetProcessUtilization(first, 0)
            said_s = time.monotonic()
        print(len([end for end in ends if end > asked_s - 1]) * 0.5)
        print(*rates)
        print(len(samples), samples[0].pid == os.getpid(), samples[0].smUtil)

    expected, first, second, count, same, share = machine.python(program).split()
    assert abs(int(first) - float(expected)) <= 5
    assert abs(int(share) - int(first)) <= 3
    assert (second, count, same) == ("0", "1", "True")


def test_it_needs_no_cuda_and_counts_as_no_process(machine: Machine) -> None:
    def program() -> None:
        nvml.nvmlInit()
        first = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetComputeRunningProcesses(first) == []
        assert nvml.nvmlDeviceGetMemoryInfo(first).used == 0

    machine.python(program, start=False)


def unshare(*command: str) -> list[str]:
    return ["unshare", "--pid", "--fork", "--mount-proc", *command]


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run(unshare("true"), capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or not can_unshare(), reason="a PID namespace takes root and unshare")
def test_pids_are_those_of_the_namespace_that_asks(machine: Machine) -> None:
    def inside() -> None:
        Driver.started()
        nvml.nvmlInit()
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(0))
        print(os.getpid(), [p.pid for p in processes], flush=True)
        sys.stdin.readline()

    outside = start_outside(machine)
    process = subprocess.Popen(
        unshare(sys.executable, "-c", text_of(inside)),
        env=machine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    machine.started.append(process)
    assert process.stdout.readline().strip() == "1 [1]", "it sees itself, not the process outside"

    def program() -> None:
        nvml.nvmlInit()
        first = nvml.nvmlDeviceGetHandleByIndex(0)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(first):
            print(process.pid, Path(f"/proc/{process.pid}/stat").read_text().split()[0])

    pids = [line.split() for line in machine.python(program, start=False).splitlines()]
    assert len(pids) == 2
    assert all(a == b for a, b in pids)
    assert str(outside.pid) in [a for a, _ in pids]
    process.communicate("done\n", timeout=60)


def start_outside(machine: Machine) -> subprocess.Popen[str]:
    def program() -> None:
        print("ready")
        sys.stdin.readline()

    process = machine.start_python(program)
    process.stdout.readline()
    return process


def test_nvidia_smi(machine: Machine) -> None:
    holder = start_outside(machine)
    smi = machine.environment["LD_LIBRARY_PATH"] + "/nvidia-smi"
    table = machine.run(smi)
    assert table.returncode == 0, table.stderr
    assert "SIMULATED" in table.stdout
    assert "518MiB /     8192MiB" in table.stdout
    assert str(holder.pid) in table.stdout
    assert len({len(line) for line in table.stdout.splitlines()}) == 1, "a straight right edge"
    listed = machine.run(smi, "-L").stdout.splitlines()
    assert listed == [f"GPU 0: Simulated A (UUID: {UUID_A})", f"GPU 1: Simulated B (UUID: {UUID_B})"]
    machine.configure("devices: 3\n")
    broken = machine.run(smi)
    assert broken.returncode == 9
    assert "sim.yaml:1:" in broken.stderr


def test_nvidia_smi_answers_queries(machine: Machine) -> None:
    holder = start_outside(machine)
    smi = machine.environment["LD_LIBRARY_PATH"] + "/nvidia-smi"

    def lines(*options: str) -> list[str]:
        result = machine.run(smi, *options)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    fields = "--query-gpu=index,memory.total,memory.used,memory.free,utilization.gpu"
    assert lines(fields, "--format=csv") == [
        "index, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%]",
        "0, 8192 MiB, 518 MiB, 7674 MiB, 0 %",
        "1, 4096 MiB, 0 MiB, 4096 MiB, 0 %",
    ]
    assert lines(fields, "--format=csv,noheader,nounits", "-i", "1") == ["1, 4096, 0, 4096, 0"]
    assert lines(fields, "--format=csv,noheader,nounits", f"--id={UUID_B},0") == [
        "0, 8192, 518, 7674, 0",
        "1, 4096, 0, 4096, 0",
    ]
    assert lines("--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv") == [
        "pid, used_gpu_memory [MiB], gpu_uuid",
        f"{holder.pid}, 518 MiB, {UUID_A}",
    ]
    assert lines("-L", "-i", "1") == [f"GPU 1: Simulated B (UUID: {UUID_B})"]
    log = ElementTree.fromstring("\n".join(lines("-q", "-x")))
    assert log.findtext("attached_gpus") == "2" and log.findtext("cuda_version") == "13.0"
    first, second = log.findall("gpu")
    assert (first.findtext("uuid"), second.findtext("fb_memory_usage/free")) == (UUID_A, "4096 MiB")
    assert [each.findtext("pid") for each in first.iter("process_info")] == [str(holder.pid)]
    assert second.find("processes/process_info") is None


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["-q"], 2),
        (["--help"], 2),
        (["--query-gpu=memory.total"], 2),
        (["--query-gpu=memory.total", "--format=json"], 2),
        (["--query-gpu=memory.total,nonsense", "--format=csv"], 2),
        (["-i"], 2),
    ],
)
def test_what_nvidia_smi_does_not_understand_is_one_line(machine: Machine, options: list[str], code: int) -> None:
    wrong = machine.run(machine.environment["LD_LIBRARY_PATH"] + "/nvidia-smi", *options)
    assert wrong.returncode == code
    assert len(wrong.stderr.splitlines()) == 1 and wrong.stdout == ""


def test_no_such_device_for_nvidia_smi(machine: Machine) -> None:
    none = machine.run(machine.environment["LD_LIBRARY_PATH"] + "/nvidia-smi", "-i", "7")
    assert (none.returncode, none.stdout) == (6, "No devices were found\n")


def test_vgpurun_reads_what_nvidias_own_package_reads(machine: Machine) -> None:
    def program() -> None:
        nvml.nvmlInit()

        from vgpurun.host import nvml as ours

        driver.mem_alloc(300 << 20)
        ours.init()
        assert (ours.driver_version(), ours.cuda_version(), ours.device_count()) == (
            nvml.nvmlSystemGetDriverVersion(),
            nvml.nvmlSystemGetCudaDriverVersion(),
            nvml.nvmlDeviceGetCount(),
        )
        for index in range(2):
            theirs, handle = nvml.nvmlDeviceGetHandleByIndex(index), ours.device_at(index)
            uuid, bus_id = nvml.nvmlDeviceGetUUID(theirs), nvml.nvmlDeviceGetPciInfo(theirs).busId
            assert (ours.uuid(handle), ours.pci_bus_id(handle)) == (uuid, bus_id)
            assert ours.uuid(ours.device_of_uuid(uuid)) == ours.uuid(ours.device_of_pci(bus_id)) == uuid
            assert ours.name(handle) == nvml.nvmlDeviceGetName(theirs)
            assert ours.minor_number(handle) == nvml.nvmlDeviceGetMinorNumber(theirs)
            assert ours.memory_bytes(handle) == nvml.nvmlDeviceGetMemoryInfo(theirs).total
            assert ours.memory_used_bytes(handle) == nvml.nvmlDeviceGetMemoryInfo(theirs, nvml.nvmlMemory_v2).used
            listed = {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(theirs)}
            assert ours.compute_processes(handle) == listed
        assert list(ours.compute_processes(ours.device_at(0))) == [os.getpid()]
        for fails in (lambda: ours.device_at(9), lambda: ours.device_of_uuid("GPU-x"), lambda: ours.call("nvmlNone")):
            try:
                fails()
                failure = None
            except ours.NvmlError as error:
                failure = error
            assert failure and str(failure) and failure.code
        ours.shutdown()

    machine.python(program)
