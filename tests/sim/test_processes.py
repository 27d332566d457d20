"""Several processes on one machine: what each sees, and what a death leaves behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simulated import MIB, Machine, driver

from cuda_driver import byref, in_threads
from support import go_on_together


def used() -> None:
    print(driver.mem_used() // MIB)


def start_holder(machine: Machine, size_mib: int = 100, **variables: str) -> subprocess.Popen[str]:
    def program() -> None:
        driver.mem_alloc(size_mib * MIB)
        print("holding")
        sys.stdin.readline()

    process = machine.start_python(program, **variables)
    assert process.stdout.readline() == "holding\n"
    return process


def test_all_processes_share_a_device(machine: Machine) -> None:
    start_holder(machine)
    start_holder(machine, 200)
    assert machine.python(used) == str(3 * 518 + 300)

    def program() -> None:
        driver.context_create(1)
        used()

    assert machine.python(program) == "100"


def test_a_device_is_full_for_all(machine: Machine) -> None:
    start_holder(machine, 7000)

    def program() -> None:
        free, _ = driver.mem_get_info()
        assert driver.result("cuMemAlloc_v2", byref(ctypes.c_uint64()), free + 1) == "CUDA_ERROR_OUT_OF_MEMORY"
        driver.mem_alloc(free)

    machine.python(program)


def test_racing_processes_never_get_more_than_there_is(machine: Machine) -> None:
    def program() -> None:
        print("ready")
        sys.stdin.readline()
        count, out = 0, ctypes.c_uint64()
        while driver.result("cuMemAlloc_v2", byref(out), 2 * MIB) == "CUDA_SUCCESS":
            count += 1
        print(count)
        sys.stdin.readline()

    processes = [machine.start_python(program) for _ in range(4)]
    counts = []
    go_on_together(processes)
    for process in processes:
        counts.append(int(process.stdout.readline()))
    assert sum(counts) == (8192 - 4 * 518) // 2


def test_kill_frees_memory(machine: Machine) -> None:
    holder = start_holder(machine)
    holder.kill()
    holder.wait()
    assert machine.python(used) == "518"


def test_kill_frees_memory_even_when_a_forked_child_lives_on(machine: Machine) -> None:
    def program() -> None:
        driver.mem_alloc(100 * MIB)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        print(child)
        sys.stdin.readline()

    process = machine.start_python(program)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        assert machine.python(used) == "518"
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_kill_at_any_moment(machine: Machine) -> None:
    def program() -> None:
        print("running")
        while True:
            live = [driver.mem_alloc(size) for size in (256, MIB + 1, 10 * MIB)] + [driver.mem_alloc_async(MIB)]
            kernel = driver.kernel("spin_1us")
            driver.launch(kernel)
            for address in live:
                driver.mem_free(address)

    for delay_s in (0.01, 0.013, 0.017, 0.023):
        processes = [machine.start_python(program) for _ in range(2)]
        for process in processes:
            process.stdout.readline()
        time.sleep(delay_s)
        for process in processes:
            process.kill()
            process.wait()
        assert machine.python(used) == "518"


def test_the_work_of_a_killed_process_is_forgotten(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("spin_30s")
        driver.launch(kernel)
        print("queued")
        sys.stdin.readline()

    process = machine.start_python(program)
    process.stdout.readline()
    process.kill()
    process.wait()

    def program() -> None:
        kernel = driver.kernel("spin_1ms")
        began = time.monotonic()
        driver.launch(kernel)
        driver.synchronize()
        assert time.monotonic() - began < 20

    machine.python(program)


def test_also_for_a_process_that_is_already_running(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("spin_1ms")
        print("ready")
        sys.stdin.readline()
        began = time.monotonic()
        driver.launch(kernel)
        driver.synchronize()
        print(time.monotonic() - began)

    waiting = machine.start_python(program)
    waiting.stdout.readline()

    def queuing() -> None:
        driver.launch(driver.kernel("spin_30s"))
        print("queued")
        sys.stdin.readline()

    queue = machine.start_python(queuing)
    queue.stdout.readline()
    queue.kill()
    queue.wait()
    assert float(waiting.communicate("go\n", timeout=60)[0]) < 20


def test_a_forked_child_cannot_use_cuda(machine: Machine) -> None:
    def program() -> None:
        address = driver.mem_alloc(MIB)
        child = os.fork()
        if child == 0:
            names = {
                driver.result("cuInit", 0),
                driver.result("cuMemAlloc_v2", byref(ctypes.c_uint64()), 1),
                driver.result("cuMemFree_v2", address),
                driver.result("cuCtxSynchronize"),
            }
            os._exit(0 if names == {"CUDA_ERROR_NOT_INITIALIZED"} and driver.version() == 13000 else 1)
        assert os.waitpid(child, 0)[1] == 0
        driver.mem_free(address)
        assert driver.mem_used() == 518 * MIB

    machine.python(program)


def test_a_child_forked_before_init_can(machine: Machine) -> None:
    def program() -> None:
        child = os.fork()
        driver.start()
        driver.mem_free(driver.mem_alloc(MIB))
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    machine.python(program, start=False)


def test_exec_frees_memory(machine: Machine) -> None:
    def program() -> None:
        driver.mem_alloc(100 * MIB)
        os.execv(
            sys.executable, [sys.executable, "-c", "print('replaced', flush=True); import sys; sys.stdin.readline()"]
        )

    process = machine.start_python(program)
    assert process.stdout.readline() == "replaced\n"
    assert machine.python(used) == "518"


def test_threads(machine: Machine) -> None:
    def program() -> None:
        def work():
            driver.primary_context()
            kernel, stream = driver.kernel("spin_10us"), driver.stream()
            for _ in range(100):
                address = driver.mem_alloc(100_000)
                driver.launch(kernel, stream)
                driver.stream_synchronize(stream)
                driver.mem_free(address)

        in_threads(work for _ in range(8))
        assert driver.mem_used() == 518 * MIB

    machine.python(program)


def test_a_hundred_processes(machine: Machine) -> None:
    def program() -> None:
        children = []
        for _ in range(100):
            child = os.fork()
            if child == 0:
                driver.init()
                os._exit(0)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)

    machine.python(program, start=False)


def test_processes_may_see_different_devices_of_one_machine(machine: Machine) -> None:
    """Containers may have some of the devices each: what a device holds goes by its UUID."""
    start_holder(machine)
    only_b = machine.folder / "b.yaml"
    only_b.write_text("devices:\n  - uuid: GPU-aabbbbbb-0000-0000-0000-000000000000\n    context_overhead_mib: 50\n")
    assert machine.python(used, VGPUSIM_CONFIG=str(only_b)) == "50"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user id takes root")
def test_users_share_a_named_state_file(machine: Machine) -> None:
    start_holder(machine)
    state = Path(machine.environment["VGPUSIM_STATE"])
    assert state.stat().st_mode & 0o777 == 0o666
    for folder in (machine.folder, *machine.folder.parents):
        if folder.stat().st_mode & 0o005 == 0:
            folder.chmod(0o755)

    def program() -> None:
        os.setgid(12345)
        os.setuid(12345)
        driver.start()
        print(driver.mem_used() // MIB)

    assert machine.python(program, start=False) == str(2 * 518 + 100)
