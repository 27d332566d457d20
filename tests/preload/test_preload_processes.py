"""Several processes under one limit, and what processes do to each other and to themselves."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from sandbox import PROGRAMS, UUID, Sandbox

from cuda_driver import Driver, byref, c_uint64, c_void_p, ptx
from support.programs import text_of
from vgpurun import abi
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.quota import Quota

LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}


def allocates(d: Driver) -> bool:
    """Return whether 100 MiB more can be had."""
    return d.result("cuMemAlloc_v2", byref(c_uint64()), 100 << 20) == "CUDA_SUCCESS"


def hold_on_request() -> None:
    """Allocate 100 MiB as often as each line says, or until that is refused, and print how often it was not."""
    d, held = Driver(), 0
    d.start()
    for line in sys.stdin:
        for _ in range(int(line)):
            if not allocates(d):
                break
            held += 1
        print(held, flush=True)


def ask(process: subprocess.Popen[str], count: int) -> int:
    """Let the process allocate 100 MiB so many times; how many it holds then."""
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def test_processes_share_the_limit_and_the_dead_hold_nothing(sandbox: Sandbox) -> None:
    with (
        sandbox.start_python(hold_on_request, **LIMIT) as first,
        sandbox.start_python(hold_on_request, **LIMIT) as second,
    ):
        assert ask(first, 5) == 5
        # 2048 - 2 contexts of 518 - 500 leaves 512 MiB.
        assert ask(second, 99) == 5
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert ask(second, 99) == 15
        second.kill()


def test_a_stopped_process_goes_on_holding(sandbox: Sandbox) -> None:
    with (
        sandbox.start_python(hold_on_request, **LIMIT) as first,
        sandbox.start_python(hold_on_request, **LIMIT) as second,
    ):
        assert ask(first, 8) == 8
        os.kill(first.pid, signal.SIGSTOP)
        assert ask(second, 99) == 2
        first.kill()
        second.kill()


def read_usage(sandbox: Sandbox) -> usage_file.DeviceReading:
    readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
    return readings[0]


def test_the_host_reads_what_is_used(sandbox: Sandbox) -> None:
    with sandbox.start_python(hold_on_request, **LIMIT) as process:
        assert ask(process, 3) == 3
        device = read_usage(sandbox)
        assert (device.allocated_bytes >> 20, device.overhead_bytes >> 20, device.processes) == (300, 518, 1)
        process.kill()
    assert read_usage(sandbox).memory_used_bytes == 0


FORKS = ("child does nothing", "child asks the driver", "child execs", "child lives on")


def fork(d: Driver, kind: str) -> None:
    if kind == "child execs":
        subprocess.run(["true"], check=True)
        return
    pid = os.fork()
    if pid == 0:
        if kind == "child asks the driver":
            name = d.result("cuMemAlloc_v2", byref(c_uint64()), 4096)
            os._exit(0 if name == "CUDA_ERROR_NOT_INITIALIZED" else 1)
        if kind == "child lives on":
            os.close(1)
            time.sleep(60)
        os._exit(0)
    if kind != "child lives on":
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("kind", FORKS)
def test_fork(sandbox: Sandbox, kind: str) -> None:
    """After a fork the parent goes on as before; a child that outlives it holds nothing of its parent's."""

    def program() -> None:
        d = Driver.started()
        held = sum(allocates(d) for _ in range(5))
        fork(d, kind)
        print(allocates(d), held)

    command, variables = [sys.executable, "-c", text_of(program)], sandbox.variables(**LIMIT)
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        try:
            assert parent.communicate(timeout=60)[0].split() == ["True", "5"]
            with sandbox.start_python(hold_on_request, **LIMIT) as next_process:
                assert ask(next_process, 99) == 15
                next_process.kill()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(sandbox: Sandbox, method: str) -> None:
    result = sandbox.run([sys.executable, PROGRAMS / "pool.py", method], **LIMIT)
    assert result.stdout.strip() == str([2048] * 4), result.stderr


@pytest.mark.slow
def test_many_processes_start_at_once(sandbox: Sandbox) -> None:
    """Each takes a slot of its own; none is refused one, none waits for another."""

    def program() -> None:
        d = Driver()
        d.init()
        d.mem_create(8 << 20)
        print("holds")
        sys.stdin.read()

    with ExitStack() as stack:
        started = []
        for _ in range(60):
            started.append(stack.enter_context(sandbox.start_python(program, CUDA_DEVICE_MEMORY_LIMIT_0="4g")))
            stack.callback(started[-1].kill)
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == "holds\n"
        seen = read_usage(sandbox)
        assert (seen.processes, seen.memory_used_bytes) == (len(started), len(started) * (8 << 20))


BROKEN_STATES: dict[str, Callable[[Path], object]] = {
    "a folder that is missing": lambda path: path.parent.rmdir(),
    "a folder in its place": lambda path: path.mkdir(),
    "another program's file": lambda path: path.write_bytes(b"x" * 4096),
    "a symbolic link": lambda path: path.symlink_to("/dev/null"),
    "random bytes": lambda path: path.write_bytes(os.urandom(ctypes.sizeof(abi.Usage))),
}


@pytest.mark.parametrize("kind", BROKEN_STATES)
def test_without_a_usable_state_file_the_limit_still_holds(sandbox: Sandbox, kind: str) -> None:
    path = sandbox.folder / "state" / "usage"
    path.parent.mkdir()
    BROKEN_STATES[kind](path)

    def program() -> None:
        d, held = Driver(), 0
        d.start()
        while allocates(d):
            held += 1
        print(held)

    command = [sys.executable, "-c", text_of(program)]
    result = sandbox.run(command, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(path), **LIMIT)
    assert result.stdout.strip() == "15", result.stderr
    assert result.stderr.splitlines()[0].startswith(f"vgpurun: warning: usage file {path}:"), result.stderr


def test_a_damaged_limits_file_grants_nothing(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver()
        d.init()
        print(d.device_total_mem(), d.result("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0))

    limits = sandbox.folder / "limits"
    for content in (b"", b"x" * 100, b"\0" * 65536):
        limits.write_bytes(content)
        result = sandbox.run([sys.executable, "-c", text_of(program)], VGPURUN_LIMITS_FILE=str(limits))
        assert result.stdout.split() == ["0", "CUDA_ERROR_OUT_OF_MEMORY"], result.stderr
        assert "nothing is granted" in result.stderr


def test_limits_change_under_a_running_program(sandbox: Sandbox) -> None:
    """Memory at the next call; below what is held, nothing is taken away, and nothing more is given."""
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(UUID, Quota(1 << 30, None))]))
    with sandbox.start_python(hold_on_request, VGPURUN_LIMITS_FILE=str(limits), **LIMIT) as process:
        assert ask(process, 99) == 5
        limits_file.write_limits(limits, [(UUID, Quota(2 << 30, None))])
        assert ask(process, 99) == 15
        limits_file.write_limits(limits, [(UUID, Quota(1 << 30, None))])
        assert ask(process, 99) == 15
        process.kill()


def load_lazily() -> None:
    d = Driver.started()
    library = d.library_load(ptx(1000 << 20))
    print("ready", flush=True)
    input()
    d.call("cuLibraryGetModule", byref(c_void_p()), library)  # not caught: nothing counts it here
    print("loaded", flush=True)
    input()


def test_what_an_idle_sibling_has_loaded_is_known_to_all(sandbox: Sandbox) -> None:
    def ask_for_both() -> None:
        d = Driver.started()
        for size_mib in (500, 400):
            print(d.result("cuMemAlloc_v2", byref(c_uint64()), size_mib << 20))

    with sandbox.start_python(load_lazily, CUDA_DEVICE_MEMORY_LIMIT="2500m") as sibling:
        assert sibling.stdout.readline() == "ready\n"
        print(file=sibling.stdin, flush=True)
        assert sibling.stdout.readline() == "loaded\n"
        found = sandbox.python(ask_for_both, CUDA_DEVICE_MEMORY_LIMIT="2500m")
        print(file=sibling.stdin, flush=True)
    assert found.split() == ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS"]  # 518 + 1000, 518, and 464 that are left
