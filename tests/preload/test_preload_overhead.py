"""The memory of contexts is counted apart, and a figure that cannot be had says so."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from cuda_driver import Driver, byref, c_void_p
from support.programs import Program, text_of
from vgpurun.limits import usage_file

MIB = 1 << 20
CONTEXT_MIB = 518
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}
UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"


def initialized() -> Driver:
    d = Driver()
    d.init()
    return d


def show() -> None:
    readings = usage_file.read_usage(Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]), ["GPU-a"])
    device = readings[0]
    print(device.allocated_bytes // MIB, device.context_bytes // MIB, device.other_bytes // MIB, flush=True)


def retained_twice() -> None:
    d = initialized()
    d.primary_context()
    d.primary_context()
    show()


def another_context() -> None:
    d = initialized()
    d.primary_context()
    d.context_create()
    d.mem_alloc(10 * MIB)
    show()


def destroyed() -> None:
    d = initialized()
    d.mem_create(20 * MIB)
    context = d.context_create()
    show()
    d.context_destroy(context)
    show()


def beside_an_array() -> None:
    d = initialized()
    d.primary_context()
    d.array(2560, 2560)
    show()


def beside_managed_memory() -> None:
    """Nobody has touched it: it does not hide a context."""
    d = initialized()
    d.primary_context()
    d.mem_alloc_managed(1000 * MIB)
    d.context_create()
    show()


def released_and_retained() -> None:
    d = initialized()
    d.primary_context()
    d.primary_context_release()
    show()
    d.primary_context()
    show()


def reset() -> None:
    d = initialized()
    d.primary_context()
    d.call("cuDevicePrimaryCtxReset_v2", 0)
    show()


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (retained_twice, ["0 518 0"]),
        (another_context, ["10 1036 0"]),
        (destroyed, ["20 518 0", "20 0 0"]),
        (beside_an_array, ["0 518 100"]),
        (beside_managed_memory, ["1000 1036 0"]),
        (released_and_retained, ["0 0 0", "0 518 0"]),
        (reset, ["0 0 0"]),
    ],
)
def test_contexts_are_counted_apart(sandbox: Sandbox, program: Program, shown: list[str]) -> None:
    assert sandbox.python(program, **LIMIT).splitlines() == shown


def test_a_refused_context_is_not_counted(sandbox: Sandbox) -> None:
    def program() -> None:
        d = initialized()
        d.primary_context()
        print(d.result("cuCtxCreate_v2", byref(c_void_p()), 0, 0))
        show()

    output = sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT_0="1g")
    assert output.splitlines() == ["CUDA_ERROR_OUT_OF_MEMORY", "0 518 0"]


def not_enforced(sandbox: Sandbox) -> tuple[str, ...]:
    readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
    return readings[0].not_enforced


def test_without_nvml_the_limit_says_what_it_cannot_hold(sandbox: Sandbox) -> None:
    only_cuda = sandbox.folder / "only_cuda"
    only_cuda.mkdir()
    shutil.copy(SIMULATED_DRIVER / "libcuda.so.1", only_cuda)

    def program() -> None:
        d = Driver.started()
        d.mem_alloc(100 * MIB)

    result = sandbox.run([sys.executable, "-c", text_of(program)], LD_LIBRARY_PATH=str(only_cuda), **LIMIT)
    assert result.returncode == 0 and "NVML cannot be had" in result.stderr
    assert not_enforced(sandbox) == ("memory",)


def test_with_nvml_nothing_is_said(sandbox: Sandbox) -> None:
    def program() -> None:
        d = initialized()
        d.primary_context()
        d.mem_alloc(100 * MIB)

    sandbox.python(program, **LIMIT)
    assert not_enforced(sandbox) == ()


def test_what_is_not_limited_has_nothing_to_enforce(sandbox: Sandbox) -> None:
    only_cuda = sandbox.folder / "only_cuda"
    only_cuda.mkdir()
    shutil.copy(SIMULATED_DRIVER / "libcuda.so.1", only_cuda)

    def program() -> None:
        Driver.started()

    sandbox.python(program, LD_LIBRARY_PATH=str(only_cuda), CUDA_DEVICE_SM_LIMIT="50")
    assert "memory" not in not_enforced(sandbox)


@pytest.mark.slow
def test_a_list_of_many_processes(sandbox: Sandbox) -> None:
    """More processes than NVML's first answer has room for: all overhead is still counted."""
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"devices:\n  - uuid: {UUID}\n    memory_mib: 131072\n    context_overhead_mib: 10\n")

    def hold() -> None:
        d = initialized()
        d.primary_context()
        show()
        sys.stdin.read()

    def many() -> None:
        for _ in range(139):
            if not os.fork():
                break
        hold()

    with sandbox.start_python(many, CUDA_DEVICE_MEMORY_LIMIT="32g") as started:
        for _ in range(140):
            started.stdout.readline()
        with sandbox.start_python(hold, **LIMIT) as last:
            last.stdout.readline()
            readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
            assert (readings[0].context_bytes, readings[0].processes) == (141 * 10 * MIB, 141)
            assert readings[0].not_enforced == ()
            last.kill()
        started.communicate()  # until all have ended
