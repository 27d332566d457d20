"""The simulated driver's memory limits of cgroups, through NVML, with nvml.h's rules, on the kernel's own cgroup v2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest
from simulated import MIB, TWO_DEVICES, Machine

from cuda_driver import CudaError, Driver
from support import IN_CGROUP2
from support.programs import Program, text_of

FOLDER = "/sys/fs/cgroup"
NONE = nvml.NVML_DEVICE_MEMORY_LIMIT_MAX
Device = Any  # a handle of pynvml


def put(soft: int, hard: int, path: str, device: Device) -> str:
    """Set a cgroup's limits; return the error's name, or "set"."""
    try:
        nvml.nvmlDeviceSetMemoryLimits_v1(device, nvml.c_nvmlSetMemoryLimits_v1_t(path.encode(), soft, hard))
    except nvml.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
    return "set"


def get(path: str, device: Device) -> tuple[int, int, int] | str:
    """Return a cgroup's limits, soft and hard, and its use, or the error's name."""
    found = nvml.c_nvmlGetMemoryLimits_v1_t(path.encode())
    try:
        nvml.nvmlDeviceGetMemoryLimits_v1(device, found)
    except nvml.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
    return found.softLimit, found.hardLimit, found.currentUsed


def devices() -> list[Device]:
    """Return the handles of both devices."""
    nvml.nvmlInit()
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]


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


def run(machine: Machine, cgroup: str, program: Program, *prefix: str) -> list[str]:
    machine.configure(f"driver_version: 615.71\n{TWO_DEVICES}")
    done = machine.run(IN_CGROUP2, *prefix, sys.executable, "-c", text_of(program))
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_rules(machine: Machine, cgroup: str) -> None:
    def program() -> None:
        first, second = devices()
        print(get(cgroup, first), put(0, 1000 * MIB, cgroup, first), get(cgroup, first), get(cgroup, second))
        print(put(2000 * MIB, 1000 * MIB, cgroup, first), put(0, 9000 * MIB, cgroup, first))
        print(put(0, 1000 * MIB, FOLDER, first), put(0, MIB, "/tmp", first))
        print(put(500 * MIB, 1000 * MIB, cgroup, first), get(cgroup, first))
        print(put(0, NONE, cgroup, first), get(cgroup, first))

    assert run(machine, cgroup, program) == [
        f"NotFound set (0, {1000 << 20}, 0) NotFound",
        "InvalidArgument InvalidArgument",
        "InvalidArgument OperatingSystem",
        f"set ({500 << 20}, {1000 << 20}, 0)",
        "set NotFound",
    ]


def test_only_root_sets_them_and_everybody_reads(machine: Machine, cgroup: str) -> None:
    os.chmod(machine.folder, 0o755)

    def program() -> None:
        first, _ = devices()
        print(put(0, 1000 * MIB, cgroup, first), get(cgroup, first))

    assert run(machine, cgroup, program, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all") == [
        "NoPermission NotFound"
    ]


def test_an_older_driver_and_mig_have_none(machine: Machine, cgroup: str) -> None:
    def older() -> None:
        first, _ = devices()
        print(put(0, MIB, cgroup, first), get(cgroup, first))

    def mig() -> None:
        nvml.nvmlInit()
        instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(nvml.nvmlDeviceGetHandleByIndex(0), 0)
        print(put(0, MIB, cgroup, instance))

    machine.configure(TWO_DEVICES)
    done = machine.run(IN_CGROUP2, sys.executable, "-c", text_of(older))
    assert done.stdout == "FunctionNotFound FunctionNotFound\n"
    instances = "\n".join(f"  - uuid: MIG-{i}0000000-0000-0000-0000-000000000000\n    mig_gpu: 1" for i in (1, 2))
    machine.configure(f"driver_version: 615.71\ndevices:\n{instances}\n  - memory_mib: 1024\n")
    done = machine.run(IN_CGROUP2, sys.executable, "-c", text_of(mig))
    assert done.stdout == "NotSupported\n"


def test_a_cgroup_is_held_and_sees_its_limit(machine: Machine, cgroup: str) -> None:
    """The contexts count, processes of cgroups below too, and a limit below what is used is refused."""
    below = f"{cgroup}/below"

    def program() -> None:
        first, _ = devices()
        put(0, 2000 * MIB, cgroup, first)
        Path(below, "cgroup.procs").write_text(str(os.getpid()))
        driver = Driver.started()
        driver.mem_alloc(800 * MIB)
        print(get(cgroup, first)[2] // MIB, [each // MIB for each in driver.mem_get_info()])
        print([nvml.nvmlDeviceGetMemoryInfo(first, version).total // MIB for version in (nvml.nvmlMemory_v2, None)])
        try:
            driver.mem_alloc(800 * MIB)
        except CudaError as error:
            print(error.code)
        print(*(put(0, size * MIB, cgroup, first) for size in (1000, 1400)))
        print(*(put(0, size * MIB, below, first) for size in (1, 1350)))
        print(driver.mem_get_info()[1] // MIB, get(cgroup, first)[1] // MIB)
        Path(FOLDER, "cgroup.procs").write_text(str(os.getpid()))

    assert run(machine, cgroup, program) == [
        "1318 [682, 2000]",
        "[2000, 8192]",
        "2",
        "InUse set",
        "InUse set",
        "1350 1400",
    ]


def test_limits_go_with_their_cgroup(machine: Machine, cgroup: str) -> None:
    """More than there is room for, one after the other."""
    path = f"{cgroup}/next"

    def program() -> None:
        first, _ = devices()
        for i in range(600):
            os.mkdir(path)
            assert get(path, first) == "NotFound"
            assert put(0, 100 * MIB, path, first) == "set", i
            os.rmdir(path)

    run(machine, cgroup, program)
