"""NVML shows the container's processes, its memory and its utilization, whatever else is on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Structure, byref, c_uint, c_ulonglong
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest
from sandbox import SIMULATED_DRIVER, UUID, Sandbox

from cuda_driver import Driver
from support import assert_measured
from support.programs import Program, text_of
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.quota import Quota

MIB = 1 << 20
CONTEXT_MIB = 518
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}
SMI = str(SIMULATED_DRIVER / "nvidia-smi")


def holding(mib: int) -> Program:
    def hold() -> None:
        d = Driver.started()
        d.mem_alloc(mib << 20)
        print("ready", flush=True)
        sys.stdin.read()

    return hold


def spin() -> None:
    d = Driver.started()
    k = d.kernel("spin_2ms")
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print("ready", flush=True)
    while True:
        d.launch(k)


def first_gpu() -> Any:
    """Return the handle of the first GPU in NVML, which begins by that."""
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


@contextmanager
def running(sandbox: Sandbox, program: Program, **limits: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has said that it is ready. LD_PRELOAD="": one of another container."""
    with sandbox.start_python(program, **limits) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def ask(sandbox: Sandbox, program: Program, **limits: str) -> object:
    """Return as JSON what a program prints that uses NVML alone, as nvidia-smi does."""
    return json.loads(sandbox.python(program, **limits))


# ---- processes ---------------------------------------------------------------------------------------------------


def lists(gpu: int = 0) -> None:
    """Print who is on the GPU, with what memory, by each function that lists it."""
    first_gpu()
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
    found = [
        nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        nvml.nvmlDeviceGetRunningProcessDetailList(handle, nvml.nvmlProcessDetailList_v1, 0),
        nvml.nvmlDeviceGetRunningProcessDetailList(handle, nvml.nvmlProcessDetailList_v1, 3),
    ]

    class Row(Structure):
        _fields_ = [("pid", c_uint), ("usedGpuMemory", c_ulonglong)]

    rows, count = (Row * 9)(), c_uint(9)
    oldest = nvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses")
    assert oldest(handle, byref(count), rows) == 0
    found.append(rows[: count.value])
    print(json.dumps([sorted([row.pid, row.usedGpuMemory // MIB] for row in each) for each in found]))


def test_the_lists_have_the_containers_processes_and_their_memory(sandbox: Sandbox) -> None:
    with (
        running(sandbox, holding(100), **LIMIT) as first,
        running(sandbox, holding(200), **LIMIT) as second,
        running(sandbox, holding(300), LD_PRELOAD=""),
    ):
        own = sorted([[first.pid, CONTEXT_MIB + 100], [second.pid, CONTEXT_MIB + 200]])
        assert ask(sandbox, lists, **LIMIT) == [own] * 5
        everybody = ask(sandbox, lists, LD_PRELOAD="")
        assert isinstance(everybody, list) and [len(each) for each in everybody] == [3] * 5
    assert ask(sandbox, lists, **LIMIT) == [[]] * 5, "the dead are not listed"


def test_another_gpu_of_the_container_lists_nobody(sandbox: Sandbox) -> None:
    def program() -> None:
        lists(1)

    with running(sandbox, holding(100), **LIMIT):
        assert ask(sandbox, program, **LIMIT) == [[]] * 5


def test_a_gpu_that_was_not_granted_shows_nothing(sandbox: Sandbox) -> None:
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([("GPU-of-another-host", Quota(1 << 30, None))]))

    def program() -> None:
        handle = first_gpu()
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        used_percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        print(json.dumps([memory.total, memory.used, used_percent, len(processes)]))

    with running(sandbox, spin, LD_PRELOAD=""):
        assert ask(sandbox, program, VGPURUN_LIMITS_FILE=str(limits)) == [0, 0, 0, 0]


def conventions() -> None:
    handle, out = first_gpu(), []
    for version in ("", "_v2", "_v3"):
        function = nvml._nvmlGetFunctionPointer(f"nvmlDeviceGetComputeRunningProcesses{version}")
        function.restype = c_uint
        rows = (c_uint * 64)(*[77] * 64)
        for room, target in ((0, None), (0, rows), (1, rows), (2, rows), (5, rows)):
            count = c_uint(room)
            out.append([function(handle, byref(count), target), count.value])
        none = function(handle, None, rows), function(handle, byref(c_uint(2)), None)
        out.append([*none, function(None, byref(c_uint(2)), rows)])
    print(json.dumps(out))


def test_the_conventions_of_the_lists_are_nvmls(sandbox: Sandbox) -> None:
    """Too small a buffer gets the number that is needed; what cannot be used is refused; as without the library."""
    too_small, done = [7, 2], [0, 2]
    with running(sandbox, holding(1), **LIMIT), running(sandbox, holding(1), **LIMIT):
        expected = [too_small, too_small, too_small, done, done, [2, 2, 2]] * 3
        assert ask(sandbox, conventions, **LIMIT) == expected
        assert ask(sandbox, conventions, LD_PRELOAD="") == expected


def test_accounting_is_of_the_containers_processes(sandbox: Sandbox) -> None:
    def asking(pids: list[int]) -> Program:
        def program() -> None:
            handle = first_gpu()

            def stats(pid: int) -> object:
                try:
                    return nvml.nvmlDeviceGetAccountingStats(handle, pid).isRunning
                except nvml.NVMLError_NotFound:
                    return "unknown"

            print(json.dumps([nvml.nvmlDeviceGetAccountingPids(handle), [stats(pid) for pid in pids]]))

        return program

    with (
        running(sandbox, holding(1), **LIMIT) as own,
        running(sandbox, holding(1), LD_PRELOAD="") as other,
    ):
        assert ask(sandbox, asking([own.pid, other.pid]), **LIMIT) == [[own.pid], [1, "unknown"]]


@pytest.fixture
def other_nvml(sandbox: Sandbox, compile_c: Callable[..., Path]) -> dict[str, str]:
    """Variables with which programs find programs/other_nvml.c as their NVML."""
    folder = sandbox.folder / "other"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(SIMULATED_DRIVER / "libcuda.so.1")
    simulated = (SIMULATED_DRIVER / "libnvidia-ml.so.1").read_bytes()
    (folder / "libsimulated.so.1").write_bytes(simulated.replace(b"libnvidia-ml.so.1\0", b"libsimulated.so.1\0"))
    options = [
        "-shared",
        "-fPIC",
        "-Wl,-soname,libother.so",
        f"-L{folder}",
        "-Wl,--no-as-needed",
        "-l:libsimulated.so.1",
    ]
    compile_c("other_nvml.c", *options, "-ldl", output="other/libnvidia-ml.so.1")
    return {"LD_LIBRARY_PATH": str(folder)}


def test_a_driver_that_lists_pids_of_the_host(sandbox: Sandbox, other_nvml: dict[str, str]) -> None:
    """The list is right all the same; that contexts are not counted is said, once, and shown."""
    limits = {**LIMIT, **other_nvml, "HOST_PIDS": "1"}

    def program() -> None:
        d = Driver.started()
        d.context_create()
        d.mem_alloc(100 << 20)
        rows = nvml.nvmlDeviceGetComputeRunningProcesses(first_gpu())
        print(os.getpid(), [(row.pid, row.usedGpuMemory >> 20) for row in rows])

    result = sandbox.run([sys.executable, "-c", text_of(program)], **limits)
    pid, listed = result.stdout.strip().split(maxsplit=1)
    assert listed == f"[({pid}, 100)]", result.stderr
    assert result.stderr.count("does not list this process") == 1
    readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
    assert readings is not None and readings[0].not_enforced == ("memory",)


def test_a_driver_whose_rows_are_longer(sandbox: Sandbox, other_nvml: dict[str, str]) -> None:
    """Drivers from 535.43 to 535.97: their third version of the list writes rows of 32 bytes."""
    simulated = Path(other_nvml["LD_LIBRARY_PATH"]) / "libsimulated.so.1"
    name = b"nvmlDeviceGetRunningProcessDetailList\0"
    simulated.write_bytes(
        simulated.read_bytes().replace(name, b"nvmlOfALaterDriver".ljust(len(name) - 1, b"_") + b"\0")
    )
    limits = {**LIMIT, **other_nvml, "LONG_ROWS": "1"}

    def program() -> None:
        rows = nvml.nvmlDeviceGetComputeRunningProcesses_v2(first_gpu())
        print(json.dumps(sorted([row.pid, row.usedGpuMemory // MIB] for row in rows)))

    with (
        running(sandbox, holding(100), **limits) as first,
        running(sandbox, holding(200), **limits) as second,
    ):
        expected = sorted([[first.pid, CONTEXT_MIB + 100], [second.pid, CONTEXT_MIB + 200]])
        assert ask(sandbox, program, **limits) == expected
    readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
    assert readings is not None and readings[0].not_enforced == ()


def kinds() -> None:
    handle = first_gpu()
    found = [
        nvml.nvmlDeviceGetComputeRunningProcesses(handle),
        nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle),
        nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle),
    ]
    for mode in range(4):
        found.append(nvml.nvmlDeviceGetRunningProcessDetailList(handle, nvml.nvmlProcessDetailList_v1, mode))
    print(json.dumps([sorted(process.pid for process in each) for each in found]))


def test_who_draws_and_who_uses_mps(sandbox: Sandbox, other_nvml: dict[str, str]) -> None:
    """The driver's lists are cut to the container's processes; an MPS client is in one list only."""
    with (
        running(sandbox, holding(1), **LIMIT) as plain,
        running(sandbox, holding(1), **LIMIT) as client,
        running(sandbox, holding(1), LD_PRELOAD="") as other,
    ):
        pids = {"GRAPHICS_PIDS": f"{other.pid},{plain.pid}", "MPS_PIDS": f"{client.pid},{other.pid},1"}
        both = sorted([plain.pid, client.pid])
        expected = [[plain.pid], [plain.pid], [client.pid]]
        assert ask(sandbox, kinds, **LIMIT, **other_nvml, **pids) == [*expected, *expected, both]


# ---- memory ------------------------------------------------------------------------------------------------------


def both_views() -> None:
    d = Driver.started()
    d.mem_alloc(100 << 20)
    handle = first_gpu()
    free, total = d.mem_get_info()
    for version in (None, nvml.nvmlMemory_v2):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version)
        assert (memory.free, memory.total) == (free, total), (memory.free, memory.total, free, total)
    print(memory.total >> 20, memory.used >> 20, memory.free >> 20)


def test_free_is_what_the_device_really_has(sandbox: Sandbox) -> None:
    """Programs of others leave 8192 - 518 - 6000 MiB, less than the limit."""
    with running(sandbox, holding(6000), LD_PRELOAD=""):
        seen = sandbox.python(both_views, CUDA_DEVICE_MEMORY_LIMIT="4g")
    assert seen.split() == ["4096", str(CONTEXT_MIB + 100), str(8192 - 6518 - CONTEXT_MIB - 100)]
    assert sandbox.python(both_views, CUDA_DEVICE_MEMORY_LIMIT="4g").split() == ["4096", "618", str(4096 - 618)]


# ---- utilization -------------------------------------------------------------------------------------------------


def shown_busy() -> None:
    handle = first_gpu()
    time.sleep(1.3)
    rates = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu for _ in range(3) if not time.sleep(0.1)]
    since = int((time.time() - 1) * 1e6)

    def samples(query: Callable[[Any, int], Any]) -> list[list[int]]:
        try:
            return [[sample.pid, sample.smUtil] for sample in query(handle, since)]
        except nvml.NVMLError_NotFound:
            return []

    old, new = samples(nvml.nvmlDeviceGetProcessUtilization), samples(nvml.nvmlDeviceGetProcessesUtilizationInfo)
    print(json.dumps([sum(rates) / 3, old, new]))


def busy(sandbox: Sandbox, **limits: str) -> tuple[float, list[list[int]]]:
    """The device's utilization, and that of each process: both ways to ask say the same."""
    found = ask(sandbox, shown_busy, **limits)
    assert isinstance(found, list)
    rate, old, new = found
    assert [pid for pid, _ in old] == [pid for pid, _ in new]
    return rate, new


def only_busy(sandbox: Sandbox, own: subprocess.Popen[str], **limits: str) -> tuple[float, int]:
    """The device's utilization, and that of the one process that is listed."""
    rate, processes = busy(sandbox, **limits)
    ((pid, of_process),) = processes
    assert pid == own.pid
    return rate, of_process


def of_own_limit(busy_gpu: Sandbox, percent: str) -> tuple[float, int]:
    limit = {"CUDA_DEVICE_SM_LIMIT": percent}
    with running(busy_gpu, spin, **limit) as own:
        return only_busy(busy_gpu, own, **limit)


@pytest.mark.real_time(measure=of_own_limit)
@pytest.mark.parametrize("percent", ["20", pytest.param("50", marks=pytest.mark.exhaustive)])
def test_full_use_of_a_compute_limit_is_100_percent(measured: Callable[[], tuple[float, int]], percent: str) -> None:
    assert_measured(measured, lambda seen: 90 <= seen[0] <= 100 and seen[1] >= 85)


def beside_others(busy_gpu: Sandbox) -> float:
    """The GPU is busy with work of another container, as it is shown there; this one is idle."""
    with running(busy_gpu, spin, LD_PRELOAD="") as other:
        rate, _ = only_busy(busy_gpu, other, LD_PRELOAD="")
        for limits in (LIMIT, {"CUDA_DEVICE_SM_LIMIT": "50"}):
            with running(busy_gpu, holding(1), **limits):
                assert busy(busy_gpu, **limits) == (0, [])
    return rate


@pytest.mark.real_time(measure=beside_others)
def test_others_do_not_show(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda rate: rate > 90)


def without_a_limit(busy_gpu: Sandbox) -> tuple[float, int]:
    """Two containers without one share the GPU, half and half."""
    with running(busy_gpu, spin, **LIMIT) as own, running(busy_gpu, spin, LD_PRELOAD=""):
        return only_busy(busy_gpu, own, **LIMIT)


@pytest.mark.real_time(measure=without_a_limit)
def test_without_a_compute_limit_it_is_a_share_of_the_gpu(measured: Callable[[], tuple[float, int]]) -> None:
    assert_measured(measured, lambda seen: 35 <= seen[0] <= 65 and abs(seen[1] - seen[0]) < 15)


def test_samples_of_all_tenants_are_refused_as_under_mig(sandbox: Sandbox) -> None:
    def program() -> None:
        handle = first_gpu()

        def samples(kind: int) -> object:
            try:
                return len(nvml.nvmlDeviceGetSamples(handle, kind, 0)[1])
            except nvml.NVMLError as error:
                return type(error).__name__

        print(json.dumps([samples(nvml.NVML_GPU_UTILIZATION_SAMPLES), samples(nvml.NVML_TOTAL_POWER_SAMPLES)]))

    assert ask(sandbox, program, **LIMIT) == ["NVMLError_NotSupported"] * 2
    assert ask(sandbox, program, LD_PRELOAD="") == [5, "NVMLError_NotSupported"]


# ---- programs that show it ---------------------------------------------------------------------------------------

QUERY = ("--query-gpu=memory.total,memory.used,memory.free,utilization.gpu", "--format=csv,noheader,nounits")


def test_every_page_of_nvidia_smi_shows_the_same_small_gpu(sandbox: Sandbox) -> None:
    limits = {**LIMIT, "CUDA_DEVICE_SM_LIMIT": "30"}
    used_mib = CONTEXT_MIB + 100
    with running(sandbox, holding(100), **limits) as own, running(sandbox, holding(3), LD_PRELOAD=""):
        table = sandbox.run([SMI], **limits).stdout
        assert f"{used_mib}MiB /     2048MiB" in table
        assert [line.split()[2] for line in table.splitlines() if "python" in line] == [str(own.pid)]
        gpu = ElementTree.fromstring(sandbox.run([SMI, "-q", "-x"], **limits).stdout).find("gpu")
        memory = {name: gpu.findtext(f"fb_memory_usage/{name}") for name in ("total", "used", "free", "reserved")}
        free_mib = 2048 - used_mib
        assert memory == {
            "total": "2048 MiB",
            "used": f"{used_mib} MiB",
            "free": f"{free_mib} MiB",
            "reserved": "0 MiB",
        }
        assert gpu.findtext("utilization/gpu_util") == "0 %"
        processes = [(each.findtext("pid"), each.findtext("used_memory")) for each in gpu.iter("process_info")]
        assert processes == [(str(own.pid), f"{used_mib} MiB")]
        first = sandbox.run([SMI, *QUERY], **limits).stdout.splitlines()[0]
        assert first == f"2048, {used_mib}, {free_mib}, 0"
        applications = sandbox.run([SMI, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"], **limits)
        assert applications.stdout == f"{own.pid}, {used_mib} MiB\n"


@pytest.mark.slow
def test_gpustat(sandbox: Sandbox) -> None:
    pytest.importorskip("gpustat")
    with running(sandbox, holding(100), **LIMIT) as own, running(sandbox, holding(3), LD_PRELOAD=""):
        result = sandbox.run([sys.executable, "-m", "gpustat", "--json"], **LIMIT)
        gpu = json.loads(result.stdout)["gpus"][0]
    assert (gpu["memory.total"], gpu["memory.used"]) == (2048, CONTEXT_MIB + 100)
    assert [(each["pid"], each["gpu_memory_usage"]) for each in gpu["processes"]] == [(own.pid, CONTEXT_MIB + 100)]


@pytest.mark.slow
def test_nvitop(sandbox: Sandbox) -> None:
    pytest.importorskip("nvitop")

    def program() -> None:
        from nvitop import Device

        d = Device(0)
        processes = {pid: each.gpu_memory() >> 20 for pid, each in d.processes().items()}
        memory = [size >> 20 for size in (d.memory_total(), d.memory_used(), d.memory_free())]
        print(json.dumps([*memory, d.gpu_utilization(), processes]))

    used_mib = CONTEXT_MIB + 100
    with running(sandbox, holding(100), **LIMIT) as own, running(sandbox, holding(3), LD_PRELOAD=""):
        found = json.loads(sandbox.python(program, **LIMIT))
    assert found == [2048, used_mib, 2048 - used_mib, 0, {str(own.pid): used_mib}]


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace takes root")
def test_pids_are_those_of_the_container(sandbox: Sandbox) -> None:
    """In a PID namespace of its own, as a container has one, the list has the PIDs that ps shows there."""

    def program() -> None:
        d = Driver.started()
        d.mem_alloc(100 << 20)
        print(os.getpid(), [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(first_gpu())])

    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", text_of(program)]
    with running(sandbox, holding(3), LD_PRELOAD=""):
        assert sandbox.run(command, **LIMIT).stdout == "1 [1]\n"
