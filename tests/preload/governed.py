"""For tests of the scheduler's limiter: a program under a limits file, and what shows of its governor."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox import Sandbox

from cuda_driver import Driver
from support import wait_until
from support.programs import Program
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota

GOVERNOR = "vgpu-governor"


@contextmanager
def running(
    sandbox: Sandbox, program: Program, quota: Quota, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a program that prints `ready`; yield it and its limits file."""
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
    with sandbox.start_python(program, VGPURUN_LIMITS_FILE=str(limits), **variables) as process:
        try:
            assert line(process) == "ready"
            yield process, limits
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def threads(pid: int) -> dict[str, Path]:
    return {(task / "comm").read_text().strip(): task for task in Path(f"/proc/{pid}/task").iterdir()}


def ask(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def await_records(process: subprocess.Popen[str], count: int) -> None:
    """Wait until so many mappings of the driver's control device are there: a header and the records, or none."""
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: sum(" r--s " in each and "nvidiactl" in each for each in maps.open()) == count)


def configure(sandbox: Sandbox, line: str) -> None:
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"{line}\n{config.read_text()}")


GET_TIMESLICE, GET_CONTEXT_ID = (0xA06C0104, 8), (0xA06F0113, 4)  # NVA06C_CTRL_CMD_GET_TIMESLICE and so on, in bytes


def own_control() -> tuple[int, int]:
    """Return the descriptor by which this process's driver makes its calls, and the driver's client."""
    own = next(fd for fd in os.listdir("/proc/self/fd") if "nvidiactl" in os.readlink(f"/proc/self/fd/{fd}"))
    return int(own), int.from_bytes(os.pread(int(own), 4, 16), "little")


def first_answer(command: int, size: int) -> tuple[int, int]:
    """Ask the driver about each of this process's objects; return the first that answers, and its answer."""
    (own, client), answer, status = own_control(), ctypes.c_uint64(), -1
    for handle in range(0x5C000001, 0x5C000010):
        call = (ctypes.c_uint32 * 8)(client, handle, command, 0, 0, 0, size, 0)
        ctypes.c_uint64.from_buffer(call, 16).value = ctypes.addressof(answer)
        ctypes.CDLL("libcuda.so.1").ioctl(own, ctypes.c_ulong(0xC020462A), call)
        status = call[7]
        if status == 0:
            return handle, answer.value
    raise AssertionError(f"no object answers: {status:#x}")


def free_a_channel_unseen() -> None:
    """The library, which has not seen that, goes on to switch it with the others."""
    own, client = own_control()
    call = (ctypes.c_uint32 * 4)(client, 0, first_answer(*GET_CONTEXT_ID)[0], 0)
    ctypes.CDLL("libcuda.so.1").ioctl(own, ctypes.c_ulong(0xC0104629), call)
    assert call[3] == 0


def telling_its_slice() -> None:
    """Work all the time; tell for each line for how long the GPU runs this process at a time."""

    def work() -> None:
        other = Driver()
        other.set_current(context)
        while True:
            other.launch(k)
            other.synchronize()

    d = Driver()
    d.init()
    context, k = d.primary_context(), d.kernel("spin_2ms")
    d.launch(k)
    threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    while True:
        input()
        print(first_answer(*GET_TIMESLICE)[1], flush=True)


def await_slice(process: subprocess.Popen[str], slice_us: int) -> None:
    """Wait until such a process tells that."""
    seen, end_s = set(), time.monotonic() + 30
    while slice_us not in seen:
        assert time.monotonic() < end_s, seen
        ask(process)
        seen.add(int(line(process)))
