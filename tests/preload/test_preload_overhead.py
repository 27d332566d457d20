"""The memory of contexts is counted apart, and a figure that cannot be had says so."""

from __future__ import annotations

import shutil
import sys

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from vgpurun.limits import usage_file

MIB = 1 << 20
CONTEXT_MIB = 518
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}
UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"

START = """
import os, sys
from pathlib import Path
from cuda_driver import *
d = Driver(); d.init()
from vgpurun.limits import usage_file
MIB = 1 << 20
def show():
    device = usage_file.read_usage(Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]), ["GPU-a"])[0]
    print(device.allocated_bytes // MIB, device.context_bytes // MIB, device.other_bytes // MIB, flush=True)
"""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("d.primary_context(); d.primary_context(); show()", ["0 518 0"]),
        ("d.primary_context(); d.context_create(); d.mem_alloc(10 * MIB); show()", ["10 1036 0"]),
        (
            "d.mem_create(20 * MIB); c = d.context_create(); show(); d.context_destroy(c); show()",
            ["20 518 0", "20 0 0"],
        ),
        ("d.primary_context(); d.array(2560, 2560); show()", ["0 518 100"]),
        # Managed memory that nobody has touched does not hide a context.
        ("d.primary_context(); d.mem_alloc_managed(1000 * MIB); d.context_create(); show()", ["1000 1036 0"]),
        ("d.primary_context(); d.primary_context_release(); show(); d.primary_context(); show()", ["0 0 0", "0 518 0"]),
        ("d.primary_context(); d.call('cuDevicePrimaryCtxReset_v2', 0); show()", ["0 0 0"]),
    ],
)
def test_contexts_are_counted_apart(sandbox: Sandbox, code: str, shown: list[str]) -> None:
    assert sandbox.python(START + code, **LIMIT).splitlines() == shown


def test_a_refused_context_is_not_counted(sandbox: Sandbox) -> None:
    code = START + "d.primary_context()\nprint(d.result('cuCtxCreate_v2', byref(c_void_p()), 0, 0))\nshow()"
    output = sandbox.python(code, CUDA_DEVICE_MEMORY_LIMIT_0="1g")
    assert output.splitlines() == ["CUDA_ERROR_OUT_OF_MEMORY", "0 518 0"]


def not_enforced(sandbox: Sandbox) -> tuple[str, ...]:
    readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
    assert readings is not None
    return readings[0].not_enforced


def test_without_nvml_the_limit_says_what_it_cannot_hold(sandbox: Sandbox) -> None:
    only_cuda = sandbox.folder / "only_cuda"
    only_cuda.mkdir()
    shutil.copy(SIMULATED_DRIVER / "libcuda.so.1", only_cuda)
    code = "from cuda_driver import *\nd = Driver(); d.start()\nd.mem_alloc(100 << 20)"
    result = sandbox.run([sys.executable, "-c", code], LD_LIBRARY_PATH=str(only_cuda), **LIMIT)
    assert result.returncode == 0 and "NVML cannot be had" in result.stderr
    assert not_enforced(sandbox) == ("memory",)


def test_with_nvml_nothing_is_said(sandbox: Sandbox) -> None:
    sandbox.python(START + "d.primary_context(); d.mem_alloc(100 * MIB)", **LIMIT)
    assert not_enforced(sandbox) == ()


def test_what_is_not_limited_has_nothing_to_enforce(sandbox: Sandbox) -> None:
    only_cuda = sandbox.folder / "only_cuda"
    only_cuda.mkdir()
    shutil.copy(SIMULATED_DRIVER / "libcuda.so.1", only_cuda)
    sandbox.python(
        "from cuda_driver import *\nd = Driver(); d.start()",
        LD_LIBRARY_PATH=str(only_cuda),
        **{"CUDA_DEVICE_SM_LIMIT": "50"},
    )
    assert "memory" not in not_enforced(sandbox)


@pytest.mark.slow
def test_a_list_of_many_processes(sandbox: Sandbox) -> None:
    """More processes than NVML's first answer has room for: all overhead is still counted."""
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"devices:\n  - uuid: {UUID}\n    memory_mib: 131072\n    context_overhead_mib: 10\n")
    hold = START + "d.primary_context(); show(); sys.stdin.read()"
    many = "import os, cuda_driver\nfor _ in range(139):\n    if not os.fork(): break\n"
    with sandbox.start_python(many + hold, CUDA_DEVICE_MEMORY_LIMIT="32g") as started:
        assert started.stdout is not None and started.stdin is not None
        for _ in range(140):
            started.stdout.readline()
        with sandbox.start_python(hold, **LIMIT) as last:
            assert last.stdout is not None
            last.stdout.readline()
            readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
            assert readings is not None
            assert (readings[0].context_bytes, readings[0].processes) == (141 * 10 * MIB, 141)
            assert readings[0].not_enforced == ()
            last.kill()
        started.communicate()  # until all have ended
