"""The guard's agent on simulated GPUs: idle programs lose their GPU, and get it back when they ask."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from support.suspension import Guard, Host, Program


def test_a_notebook_that_idles_answers_its_next_cell(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    notebook = start("--mem", "1g", "--gpus", "device=0", "--idle", "300ms")
    guard.says(f"suspend process {notebook.pid}: idle for ")
    assert host.used_mib() == [0, 0]
    for cell in ("check", "alloc 8", "check"):
        assert notebook.asks(cell) in {"right 4", "held", "right 5"}
    guard.says(f"resume process {notebook.pid}: its program asks for its GPU")
    assert host.used_mib()[0] > 0


def test_one_that_works_is_not_idle(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    worker = start("--mem", "1g", "--gpus", "device=0", "--idle", "5s")  # no busy machine holds it up for as long
    for _ in range(20):
        assert worker.asks("start 100") == "started"
        time.sleep(0.1)
        assert host.used_mib()[0] > 0
    guard.says(f"suspend process {worker.pid}")


def test_a_guard_that_is_killed(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    """The next one finishes what it has begun, whatever that was."""
    notebook = start("--mem", "1g", "--gpus", "device=0", "--idle", "200ms")
    for _ in range(5):
        time.sleep(random.uniform(0, 1.5))
        guard.kill()
        assert notebook.asks("check") == "right 4"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_many_notebooks_share_one_gpu(host: Host, guard: Guard, start: Callable[..., Program], count: int) -> None:
    """Each has a quarter of its 16 GiB, and is as good as alone. Memory without a pattern takes none here."""
    host.configure(16 << 10)
    guard.kill()  # the guard looks at the GPUs themselves when it starts, and seldom then
    notebooks = []
    for _ in range(count):
        notebooks.append(start("--mem", "4g", "--gpus", "device=0", "--idle", "200ms", "--wait"))
        assert notebooks[-1].asks("take 3900") == "taken"
    for notebook in notebooks:
        assert notebook.asks("check") == "right 4"
    for notebook in notebooks:
        notebook.tell("check")
    for notebook in notebooks:
        assert notebook.hears() == "right 4"
        assert host.used_mib()[0] <= 16 << 10


@pytest.mark.parametrize("option", [pytest.param("--wait=60s", marks=pytest.mark.exhaustive), "--preempt-idle"])
def test_an_idle_one_makes_way_for_a_launch(
    host: Host, guard: Guard, start: Callable[..., Program], option: str
) -> None:
    """Also where another has waited for longer, for a GPU on which nothing may be suspended."""
    start("--mem", "1500m", "--gpus", "device=1")
    other = host.start("local", "--driver", "sim", "--mem", "1500m", "--gpus", "device=1", "--wait", "--", "true")
    assert other.stderr and "waiting in place 1" in other.stderr.readline()
    idle = start("--mem", "1500m", "--gpus", "device=0", "--idle", "1h")
    busy = start("--mem", "1500m", "--gpus", "device=0", option)
    guard.says(f"suspend process {idle.pid}: room for what waits: --mem 1500m")
    assert busy.asks("check") == "right 4"
    idle.tell("check")
    assert idle.is_silent(0.5)
    busy.end()
    assert idle.hears() == "right 4"
    other.terminate()
    other.communicate(timeout=60)


def test_a_launch_that_no_idle_one_makes_way_for(host: Host, start: Callable[..., Program]) -> None:
    """The launch does not wait where no guard runs, and takes room that is there without one."""
    holder = start("--mem", "1500m", "--gpus", "device=0", "--idle", "1h", "--preempt-idle")
    done = host.vgpurun(
        "local", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0", "--preempt-idle", "--", "true"
    )
    assert done.returncode == 125 and "--preempt-idle: no vgpurun guard runs" in done.stderr
    assert "waiting" not in done.stderr and holder.asks("check") == "right 4"


def test_held_is_held(host: Host, guard: Guard, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.suspend("--hold").returncode == 0
    program.tell("check")
    assert program.is_silent(1)
    assert program.resume().returncode == 0
    assert program.hears() == "right 4"


def test_warned_of_and_stopped(guard: Guard, start: Callable[..., Program]) -> None:
    warned = start("--mem", "500m", "--gpus", "device=0", "--idle", "200ms:warn")
    guard.says(f"warn process {warned.pid}: idle for ")
    assert warned.asks("check") == "right 4"
    stopped = start("--mem", "500m", "--gpus", "device=0", "--idle", "200ms:stop")
    guard.says(f"stop process {stopped.pid}: idle for ")
    assert stopped.process.wait(30) != 0


def test_a_policy_that_is_none(host: Host) -> None:
    for text in ("soon", "5m:", "5m:sleep", "0s", ":stop"):
        done = host.vgpurun("local", "--driver", "sim", "--idle", text, "--", "true")
        assert done.returncode == 125 and f"--idle '{text}' is not TIME[:ACTION]" in done.stderr
