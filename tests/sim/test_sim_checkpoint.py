"""Processes that are taken off their GPUs and brought back by others."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simulated import MIB, SIMULATED_DRIVER, Machine

from cuda_driver import Driver, byref

PROGRAM = Path(__file__).parent / "programs" / "patterns.py"
TWO_ALIKE = """
devices:
  - memory_mib: 2048
    checkpoint_mib_per_ms: 1000
  - memory_mib: 2048
    checkpoint_mib_per_ms: 1000
  - name: another kind
    memory_mib: 2048
"""
UUIDS = [f"GPU-51a00000-0000-4000-8000-{number:012x}" for number in range(3)]


class Program:
    """A program that holds patterns, at the other end of a pipe."""

    def __init__(self, machine: Machine, device: int = 0, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", PROGRAM, str(device)],
            env={**machine.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        machine.started.append(self.process)
        self.pid = self.process.pid
        self.expect("ready")

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def expect(self, line: str) -> None:
        assert self.hear() == line

    def hear(self) -> str:
        return self.process.stdout.readline().strip()


@pytest.fixture
def driver(machine: Machine) -> Remote:
    machine.configure(TWO_ALIKE)
    return Remote(machine)


class Remote:
    """The checkpoint calls of other processes, none of which has called cuInit, and what NVML shows."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __call__(self, *calls: str) -> list[str]:
        def program() -> None:
            for call in calls:
                print(eval(f"driver.{call}"))

        return self.machine.python(program, start=False).split()

    def out(self, pid: int) -> None:
        assert self(f"lock({pid})", f"checkpoint({pid})") == ["CUDA_SUCCESS"] * 2

    def back(self, pid: int) -> None:
        assert self(f"restore({pid})", f"unlock({pid})") == ["CUDA_SUCCESS"] * 2

    def used_mib(self) -> list[int]:
        shown = self.machine.run(
            SIMULATED_DRIVER / "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"
        )
        return [int(line) for line in shown.stdout.split()]


def test_out_and_back(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    pid = program.pid
    held = [518 + 4 + 2 + 6, 0, 0]
    assert driver(f"process_state({pid})") == ["RUNNING"]
    assert driver.used_mib() == held
    assert driver(f"lock({pid})", f"process_state({pid})") == ["CUDA_SUCCESS", "LOCKED"]
    assert driver.used_mib() == held
    assert driver(f"checkpoint({pid})", f"process_state({pid})") == ["CUDA_SUCCESS", "CHECKPOINTED"]
    assert driver.used_mib() == [0, 0, 0]
    assert driver(f"restore({pid})", f"process_state({pid})") == ["CUDA_SUCCESS", "LOCKED"]
    assert driver.used_mib() == held
    assert driver(f"unlock({pid})", f"process_state({pid})") == ["CUDA_SUCCESS", "RUNNING"]
    program.tell("check")
    program.expect("right 4")


def test_a_call_waits_until_the_unlock(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    driver.out(program.pid)
    program.tell("check")
    assert select.select([program.process.stdout], [], [], 0.3) == ([], [], [])
    driver.back(program.pid)
    program.expect("right 4")


def test_the_copy_is_not_the_device_memory(machine: Machine, driver: Remote) -> None:
    """The device's memory is really gone: a program that touches it meanwhile dies."""

    def program() -> None:
        cuda = Driver()
        address = cuda.mem_alloc(4 * MIB)
        cuda.copy_to_device(address, b"x" * MIB)
        print(ctypes.string_at(address, 3).decode())
        sys.stdin.readline()
        print(ctypes.string_at(address, 3))

    process = machine.start_python(program)
    assert process.stdout.readline() == "xxx\n"
    driver.out(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(10) == -signal.SIGSEGV
    assert driver.used_mib() == [0, 0, 0]


def test_the_order_of_the_steps(machine: Machine, driver: Remote) -> None:
    pid = Program(machine).pid
    refused = "CUDA_ERROR_ILLEGAL_STATE"
    assert driver(f"checkpoint({pid})", f"restore({pid})", f"unlock({pid})") == [refused] * 3
    assert driver(f"lock({pid})", f"lock({pid})", f"restore({pid})") == ["CUDA_SUCCESS", refused, refused]
    assert driver(f"checkpoint({pid})", f"unlock({pid})", f"lock({pid})") == ["CUDA_SUCCESS", refused, refused]


def test_a_lock_waits_for_work_and_gives_up(machine: Machine, driver: Remote) -> None:
    busy, brief = Program(machine), Program(machine, 1)
    for program, kernel_ms in ((busy, 30_000), (brief, 500)):
        program.tell(f"start {kernel_ms}")
        program.expect("started")
    assert driver(f"lock({busy.pid}, 20)", f"process_state({busy.pid})") == ["CUDA_ERROR_NOT_READY", "RUNNING"]
    assert driver(f"lock({brief.pid}, 10_000)") == ["CUDA_SUCCESS"]


def test_which_process(machine: Machine, driver: Remote) -> None:
    assert driver(f"lock({os.getpid()})", "lock(0)", "lock(-1)") == ["CUDA_ERROR_INVALID_VALUE"] * 3
    program = Program(machine)
    pid = program.pid

    def asking() -> None:
        tid = ctypes.c_int()
        Driver().call("cuCheckpointProcessGetRestoreThreadId", pid, byref(tid))
        print(tid.value)

    thread = machine.python(asking, start=False)
    assert (Path(f"/proc/{program.pid}/task") / thread).exists()
    program.process.kill()
    program.process.wait()
    assert driver(f"lock({program.pid})") == ["CUDA_ERROR_INVALID_VALUE"]


def test_a_killed_process_takes_its_memory_with_it(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    driver.out(program.pid)
    program.process.kill()
    program.process.wait()
    assert driver.used_mib() == [0, 0, 0]
    Program(machine)


def test_older_drivers_cannot(machine: Machine, driver: Remote) -> None:
    pid = Program(machine).pid
    machine.configure("driver_version: 550.54\n" + TWO_ALIKE)
    assert driver(f"lock({pid})") == ["CUDA_ERROR_NOT_SUPPORTED"]


def test_memory_that_others_use_does_not_come_back(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    program.tell("share")
    program.expect("shared")
    pid = program.pid
    assert driver(f"lock({pid})", f"checkpoint({pid})", f"restore({pid})") == [
        "CUDA_SUCCESS",
        "CUDA_SUCCESS",
        "CUDA_ERROR_OPERATING_SYSTEM",
    ]


def test_managed_memory_stays(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    program.tell("managed")
    program.expect("managed")
    calls = [
        f"lock({program.pid})",
        f"checkpoint({program.pid})",
        f"process_state({program.pid})",
        f"unlock({program.pid})",
    ]
    assert driver(*calls) == ["CUDA_SUCCESS", "CUDA_ERROR_NOT_SUPPORTED", "LOCKED", "CUDA_SUCCESS"]
    program.tell("check")
    program.expect("right 4")


@pytest.mark.parametrize(
    ("told", "result", "state"),
    [("refuse", "CUDA_ERROR_NOT_SUPPORTED", "LOCKED"), ("fail", "CUDA_ERROR_UNKNOWN", "FAILED")],
)
def test_programs_that_are_told_to_refuse(machine: Machine, driver: Remote, told: str, result: str, state: str) -> None:
    pid = Program(machine, VGPUSIM_CHECKPOINT=told).pid
    assert driver(f"lock({pid})", f"checkpoint({pid})", f"process_state({pid})") == ["CUDA_SUCCESS", result, state]


def test_a_restore_without_room_never_works_again(machine: Machine, driver: Remote) -> None:
    """A card does so too: whoever restores looks first."""
    program = Program(machine)
    driver.out(program.pid)

    def holding() -> None:
        Driver().mem_alloc(1200 * MIB)
        print("held")
        sys.stdin.readline()

    holder = machine.start_python(holding)
    assert holder.stdout.readline() == "held\n"
    assert driver(f"restore({program.pid})", f"process_state({program.pid})") == [
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CHECKPOINTED",
    ]
    holder.kill()
    holder.wait()
    assert driver.used_mib() == [0, 0, 0]
    assert driver(f"restore({program.pid})") == ["CUDA_ERROR_OPERATING_SYSTEM"]


def test_onto_another_gpu(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    driver.out(program.pid)
    pairs = dict(zip(UUIDS, (UUIDS[1], UUIDS[0], UUIDS[2]), strict=True))
    assert driver(f"restore({program.pid}, {pairs})", f"unlock({program.pid})") == ["CUDA_SUCCESS"] * 2
    assert driver.used_mib() == [0, 530, 0]
    program.tell("check")
    program.expect("right 4")
    program.tell("uuid")
    program.expect(UUIDS[1])
    program.tell("alloc 100")
    program.expect("held")
    assert driver.used_mib() == [0, 630, 0]
    program.tell("start 30000")
    program.expect("started")
    smi = (SIMULATED_DRIVER / "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
    while (busy := list(map(int, machine.run(*smi).stdout.split()))) == [0, 0, 0]:
        pass
    assert busy[0] == busy[2] == 0, "its work goes on there"
    program.process.kill()
    program.process.wait()
    assert driver.used_mib() == [0, 0, 0]


def test_onto_a_gpu_where_it_cannot_go(machine: Machine, driver: Remote) -> None:
    program = Program(machine)
    driver.out(program.pid)
    unknown = "GPU-51a00000-0000-4000-8000-0000000000ff"
    for pairs in (
        dict(zip(UUIDS, (UUIDS[2], UUIDS[1], UUIDS[0]), strict=True)),  # another kind
        dict(zip(UUIDS, (unknown, *UUIDS[1:]), strict=True)),
        dict(zip(UUIDS, (UUIDS[1], *UUIDS[1:]), strict=True)),  # two onto one
        {UUIDS[0]: UUIDS[1]},  # not all of its GPUs
    ):
        assert driver(f"restore({program.pid}, {pairs})") == ["CUDA_ERROR_INVALID_VALUE"]
    driver.back(program.pid)
    program.tell("check")
    program.expect("right 4")


def test_a_caller_that_is_killed_leaves_nothing_undone(machine: Machine, driver: Remote) -> None:
    """The process itself ends what it was asked for."""
    machine.configure(TWO_ALIKE.replace("per_ms: 1000", "per_ms: 2"))  # 265 ms
    program = Program(machine)
    assert driver(f"lock({program.pid})") == ["CUDA_SUCCESS"]
    pid = program.pid

    def asking() -> None:
        print("asks")
        Driver().checkpoint(pid)

    caller = machine.start_python(asking, start=False)
    assert caller.stdout.readline() == "asks\n"
    caller.kill()
    caller.wait()
    assert driver(f"restore({program.pid})")[0] in {
        "CUDA_SUCCESS",
        "CUDA_ERROR_ILLEGAL_STATE",
    }  # may not have asked
    driver(f"checkpoint({program.pid})", f"restore({program.pid})", f"unlock({program.pid})")
    program.tell("check")
    program.expect("right 4")


def test_it_takes_the_time_of_the_copy(machine: Machine, driver: Remote) -> None:
    machine.configure(TWO_ALIKE.replace("per_ms: 1000", "per_ms: 5"))
    program = Program(machine)
    for call in (f"lock({program.pid})", f"checkpoint({program.pid})", f"restore({program.pid})"):
        began = time.monotonic()
        assert driver(call) == ["CUDA_SUCCESS"]
        if "lock" not in call:
            assert time.monotonic() - began > 530 / 5 / 1000
