"""The simulated driver's memory limits of cgroups, through NVML, with nvml.h's rules, on the kernel's own cgroup v2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from simulated import TWO_DEVICES, Machine

from support import IN_CGROUP2

FOLDER = "/sys/fs/cgroup"
PRELUDE = """
import os, subprocess, sys
import pynvml as nvml
from cuda_driver import *
MIB, NONE = 1 << 20, nvml.NVML_DEVICE_MEMORY_LIMIT_MAX
nvml.nvmlInit()
first, second = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
folder = os.environ["CGROUP"]
def put(soft, hard, path=folder, device=first):
    try:
        nvml.nvmlDeviceSetMemoryLimits_v1(device, nvml.c_nvmlSetMemoryLimits_v1_t(path.encode(), soft, hard))
        return "set"
    except nvml.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
def get(path=folder, device=first):
    found = nvml.c_nvmlGetMemoryLimits_v1_t(path.encode())
    try:
        nvml.nvmlDeviceGetMemoryLimits_v1(device, found)
    except nvml.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
    return found.softLimit, found.hardLimit, found.currentUsed
def enter(path=folder):
    open(path + "/cgroup.procs", "w").write(str(os.getpid()))
"""


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup of the test's own, with one below it."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a cgroup")
    path = f"{FOLDER}/vgpurun-limits-{os.getpid()}"  # not the name of an engine's cgroups
    made = subprocess.run([IN_CGROUP2, "mkdir", "-p", f"{path}/below"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"the kernel has no cgroup v2: {made.stderr.strip()}")
    yield path
    subprocess.run([IN_CGROUP2, "rmdir", f"{path}/below", path], check=True)


def run(machine: Machine, cgroup: str, code: str, *prefix: str) -> list[str]:
    machine.configure(f"driver_version: 615.71\n{TWO_DEVICES}")
    done = machine.run(IN_CGROUP2, *prefix, sys.executable, "-c", PRELUDE + code, CGROUP=cgroup)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_rules(machine: Machine, cgroup: str) -> None:
    code = """
print(get(), put(0, 1000 * MIB), get(), get(device=second))
print(put(2000 * MIB, 1000 * MIB), put(0, 9000 * MIB), put(0, 1000 * MIB, "/sys/fs/cgroup"), put(0, MIB, "/tmp"))
print(put(500 * MIB, 1000 * MIB), get(), put(0, NONE), get())
"""
    assert run(machine, cgroup, code) == [
        f"NotFound set (0, {1000 << 20}, 0) NotFound",
        "InvalidArgument InvalidArgument InvalidArgument OperatingSystem",
        f"set ({500 << 20}, {1000 << 20}, 0) set NotFound",
    ]


def test_only_root_sets_them_and_everybody_reads(machine: Machine, cgroup: str) -> None:
    os.chmod(machine.folder, 0o755)
    code = "print(put(0, 1000 * MIB), get())"
    assert run(machine, cgroup, code, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all") == [
        "NoPermission NotFound"
    ]


def test_an_older_driver_and_mig_have_none(machine: Machine, cgroup: str) -> None:
    machine.configure(TWO_DEVICES)
    done = machine.run(IN_CGROUP2, sys.executable, "-c", f"{PRELUDE}print(put(0, MIB), get())", CGROUP=cgroup)
    assert done.stdout == "FunctionNotFound FunctionNotFound\n"
    mig = "\n".join(f"  - uuid: MIG-{i}0000000-0000-0000-0000-000000000000\n    mig_gpu: 1" for i in (1, 2))
    machine.configure(f"driver_version: 615.71\ndevices:\n{mig}\n  - memory_mib: 1024\n")
    code = "instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(first, 0); print(put(0, MIB, device=instance))"
    done = machine.run(IN_CGROUP2, sys.executable, "-c", PRELUDE + code, CGROUP=cgroup)
    assert done.stdout == "NotSupported\n"


def test_a_cgroup_is_held_and_sees_its_limit(machine: Machine, cgroup: str) -> None:
    """The contexts count, processes of cgroups below too, and a limit below what is used is refused."""
    code = """
put(0, 2000 * MIB)
enter(folder + "/below")
driver = Driver()
driver.start()
driver.mem_alloc(800 * MIB)
print(get()[2] // MIB, [each // MIB for each in driver.mem_get_info()])
print([nvml.nvmlDeviceGetMemoryInfo(first, version).total // MIB for version in (nvml.nvmlMemory_v2, None)])
try:
    driver.mem_alloc(800 * MIB)
except CudaError as error:
    print(error.code)
print(put(0, 1000 * MIB), put(0, 1400 * MIB), put(0, MIB, folder + "/below"), put(0, 1350 * MIB, folder + "/below"))
print(driver.mem_get_info()[1] // MIB, get()[1] // MIB)
enter("/sys/fs/cgroup")
"""
    assert run(machine, cgroup, code) == ["1318 [682, 2000]", "[2000, 8192]", "2", "InUse set InUse set", "1350 1400"]


def test_limits_go_with_their_cgroup(machine: Machine, cgroup: str) -> None:
    """More than there is room for, one after the other."""
    code = """
for i in range(600):
    os.mkdir(folder + "/next")
    assert get(folder + "/next") == "NotFound"
    assert put(0, 100 * MIB, folder + "/next") == "set", i
    os.rmdir(folder + "/next")
"""
    run(machine, cgroup, code)
