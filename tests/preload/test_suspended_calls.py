"""Programs whose GPUs the host has taken: their calls wait, and ask for the GPUs."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox import UUID, Sandbox

from cuda_driver import Driver
from support.programs import text_of
from vgpurun import abi
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.quota import Quota

GIB = 1 << 30


def start() -> None:
    Driver().start()


START = text_of(start)


def call_what_is_named() -> None:
    d = Driver.started()
    kernel, address, event = d.kernel("spin_1us"), d.mem_alloc(1 << 20), d.event()
    calls: dict[str, Callable[[], object]] = {
        "launch": lambda: d.launch(kernel),
        "allocate": lambda: d.mem_alloc(1 << 20),
        "copy to the device": lambda: d.copy_to_device(address, b"x"),
        "copy from the device": lambda: d.copy_from_device(address, 1),
        "synchronize": lambda: d.synchronize(),
        "record an event": lambda: d.event_record(event),
        "set memory": lambda: d.call("cuMemsetD8_v2", address, 1, 1),
        "start another": lambda: subprocess.run([sys.executable, "-c", START], check=True),
        "catch a signal": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    }
    d.launch(kernel)
    print("ready")
    for line in sys.stdin:
        calls[line.strip()]()
        print("done")


CALLS = (
    "launch",
    "allocate",
    "copy to the device",
    "copy from the device",
    "synchronize",
    "record an event",
    "set memory",
    "start another",
)


class Limited:
    """A program under a limits file, which calls what it is told."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.limits = sandbox.folder / "limits"
        self.usage = sandbox.folder / "usage"
        self.limits.write_bytes(limits_file.limits_bytes([(UUID, Quota(4 * GIB, 50))]))
        environment = sandbox.variables(VGPURUN_LIMITS_FILE=str(self.limits))
        command = [sys.executable, "-u", "-c", text_of(call_what_is_named)]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.says("ready")

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def says(self, word: str) -> bool:
        return self.process.stdout.readline() == word + "\n"

    def is_silent(self, for_s: float) -> bool:
        return not select.select([self.process.stdout], [], [], for_s)[0]

    def set_suspended(self, suspended: int) -> None:
        limits_file.set_suspended(self.limits, suspended)


@pytest.fixture
def limited(sandbox: Sandbox) -> Iterator[Limited]:
    started = Limited(sandbox)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_waits_and_asks(limited: Limited, call: str) -> None:
    began_ns = time.monotonic_ns()
    limited.tell(call)
    assert limited.says("done")
    assert usage_file.read_asked_ns(limited.usage) == 0
    limited.set_suspended(abi.SUSPENDED)
    limited.tell(call)
    assert limited.is_silent(0.1)
    while not (asked_ns := usage_file.read_asked_ns(limited.usage)):
        assert limited.is_silent(0.01)
    assert began_ns < asked_ns <= time.monotonic_ns()
    limited.set_suspended(abi.SUSPENDING)
    assert limited.is_silent(0.05)
    limited.set_suspended(abi.NOT_SUSPENDED)
    assert limited.says("done")


def test_a_waiting_program_can_be_ended(limited: Limited) -> None:
    limited.tell("catch a signal")
    assert limited.says("done")
    limited.set_suspended(abi.SUSPENDED)
    limited.tell("launch")
    assert limited.is_silent(0.1)
    limited.process.send_signal(signal.SIGUSR1)
    assert limited.is_silent(0.1)
    limited.process.terminate()
    assert limited.process.wait(10) == -signal.SIGTERM


def test_a_change_of_limits_leaves_a_container_suspended(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(limits_file.limits_bytes([(UUID, Quota(GIB))], may_disable=True))
    limits_file.set_suspended(path, abi.SUSPENDED)
    limits = limits_file.read_limits(path)
    assert limits == [(UUID, Quota(GIB, suspended=abi.SUSPENDED))]
    limits_file.write_limits(path, limits)
    assert limits_file.read_limits(path) == limits
