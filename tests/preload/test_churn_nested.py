"""Processes of shares within a share that allocate, free and are killed at random, and one that damages the outer file.

The simulated driver is the witness, as in test_churn. The outer share is so large that processes keep a part of it, and
all but 2 GiB of it are held by a process of its own.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox
from test_churn import MACHINE, SECONDS, figures, fill, peak_bytes

from cuda_driver import Driver
from support.shares import write_share
from vgpurun import abi
from vgpurun.limits.nested import share_of
from vgpurun.limits.quota import Quota

pytestmark = pytest.mark.slow

GIB = 1 << 30
OUTER_BYTES, INNER_BYTES, LEFT_BYTES = 48 * GIB, 3 * GIB // 2, 2 * GIB
PROCESSES = 16


def hold() -> None:
    d = Driver.started()
    d.mem_alloc(OUTER_BYTES - LEFT_BYTES)
    print("holds", flush=True)
    input()


class Shares:
    """Two shares in one, and the processes in them."""

    def __init__(self, sandbox: Sandbox, program: Path) -> None:
        uuid = MACHINE.split("uuid: ")[1].split()[0]
        self._sandbox, self._program = sandbox, program
        self.outer = write_share(sandbox.folder / "outer", [(uuid, Quota(OUTER_BYTES))], None)
        self._inner = [
            write_share(sandbox.folder / name, [(uuid, Quota(INNER_BYTES))], share_of(sandbox.folder / "outer"))
            for name in ("first", "second")
        ]
        self._seeds = iter(range(1 << 30))

    def start(self, seconds: float = 3600) -> subprocess.Popen[str]:
        seed = next(self._seeds)
        variables = self._sandbox.variables(**self._inner[seed % 2], LIBCUDA_LOG_LEVEL="0")
        return subprocess.Popen(
            [self._program, str(seconds), str(seed), "1"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def all_that_fits(self) -> int:
        return int(self._sandbox.python(fill, 240, **self.outer))

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self._sandbox)

    @property
    def outer_usage(self) -> Path:
        return Path(self.outer[abi.ENV_USAGE_FILE])


@pytest.fixture
def shares(sandbox: Sandbox, compile_c: Callable[..., Path]) -> Iterator[Shares]:
    (sandbox.folder / "sim.yaml").write_text(MACHINE)
    program = compile_c("churn.c", "-O1", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread", output="churn")
    made = Shares(sandbox, program)
    with sandbox.start_python(hold, **made.outer) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
        yield made
        holder.kill()
    assert made.all_that_fits() == OUTER_BYTES, "nothing is left of those that have ended"


def test_the_outer_limit_holds_at_every_instant_while_processes_are_killed(shares: Shares) -> None:
    processes = [shares.start() for _ in range(PROCESSES)]
    killed, until = 0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(random.uniform(0, 0.04))
        victim = processes.pop(random.randrange(PROCESSES))
        victim.kill()
        victim.communicate()
        processes.append(shares.start())
        killed += 1
    print(f"killed {killed}, peak {shares.peak_bytes}")
    for process in processes:
        process.kill()
        process.communicate()
    assert OUTER_BYTES - LEFT_BYTES / 2 < shares.peak_bytes <= OUTER_BYTES


@pytest.mark.parametrize(
    "what", ["noise", *(pytest.param(what, marks=pytest.mark.exhaustive) for what in ("cut", "zeros", "removed"))]
)
def test_what_is_done_to_the_outer_usage_file_ends_no_process(shares: Shares, what: str) -> None:
    """Programs inside look like users of the outer share, who may write it; their own shares' limits hold."""
    processes = [shares.start(SECONDS) for _ in range(4)]
    until = time.monotonic() + SECONDS / 2
    while time.monotonic() < until:
        damage(shares.outer_usage, what)
        time.sleep(0.002)
    for process in processes:
        calls, _, _ = figures(process)
        process.communicate()
        assert (process.returncode, calls > 100) == (0, True)
    assert shares.peak_bytes <= OUTER_BYTES - LEFT_BYTES + 2 * INNER_BYTES


def damage(usage: Path, what: str) -> None:
    if what == "removed":
        usage.unlink(missing_ok=True)
        return
    with usage.open("r+b", buffering=0) as file:
        if what == "cut":
            file.truncate(random.randrange(os.stat(usage).st_size + 1))
        else:
            file.seek(random.randrange(1 << 16))
            file.write(bytes(4096) if what == "zeros" else os.urandom(4096))
