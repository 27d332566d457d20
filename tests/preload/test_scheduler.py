"""The limits that the GPU's own scheduler holds: no launch waits, and work is taken off the GPU in the middle of a
kernel.

Shares are of the simulated GPU, which preempts and counts as the driver on a card does (tests/sim/test_channels.py).
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from governed import GOVERNOR, ask, await_records, await_slice, configure, line, running, telling_its_slice, threads
from sandbox import Sandbox, without_scheduler
from together import each_alone, measured_together

from cuda_driver import Driver
from support import assert_measured, go_on_together
from support.programs import Program, text_of
from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.policies import Priority
from vgpurun.limits.quota import Quota
from vgpurun.profiles.reader import read_profiles

KERNELS = {"spin_1ms": 1e-3, "spin_100ms": 0.1, "spin_1s": 1.0}
POINTS = 2.0


def flat_out(d: Driver, k: int, kernel_s: float, seconds: float) -> float:
    """Keep kernels for 50 ms in flight, and two at least.

    Return what they were of the time up to the end of the last one.
    """
    events, done, began = [], 0, time.monotonic()
    while True:
        d.launch(k)
        events.append(d.event())
        d.event_record(events[-1])
        if len(events) > max(1, int(50e-3 / kernel_s)):
            d.event_synchronize(events.pop(0))
            done += 1
        passed_s = time.monotonic() - began
        if done and passed_s > seconds:
            return done * kernel_s / passed_s


def alone(kernel: str) -> Program:
    def program() -> None:
        d = Driver.started()
        print(100 * flat_out(d, d.kernel(kernel), KERNELS[kernel], 4), flush=True)
        os._exit(0)

    return program


def shares_alone(sandbox: Sandbox, percent: int) -> dict[str, float]:
    programs = {kernel: (sys.executable, "-c", text_of(alone(kernel))) for kernel in KERNELS}
    return each_alone(sandbox, programs, CUDA_DEVICE_SM_LIMIT=str(percent))


@pytest.mark.real_time(measure=shares_alone)
@pytest.mark.parametrize("percent", [20, 50])
def test_kernels_of_any_length_are_held(measured: Callable[[], dict[str, float]], percent: int) -> None:
    assert_measured(measured, lambda shares: all(abs(share - percent) < POINTS for share in shares.values()))


def beside(kernel: str) -> Program:
    def program() -> None:
        d = Driver.started()
        k = d.kernel(kernel)
        print("ready", flush=True)
        input()
        flat_out(d, k, KERNELS[kernel], 0.5)
        print(100 * flat_out(d, k, KERNELS[kernel], 3), flush=True)
        flat_out(d, k, KERNELS[kernel], 60)

    return program


@dataclass(frozen=True)
class Tenants:
    """Two programs, their limits, how many containers they are in, and what each is to have in percent."""

    kernels: tuple[str, str]
    limits: tuple[int, int]
    containers: int
    due: tuple[int, int]


TENANTS = [
    Tenants(("spin_100ms", "spin_1ms"), (30, 70), 2, (30, 70)),
    Tenants(("spin_1ms", "spin_1ms"), (30, 50), 2, (30, 50)),
    Tenants(("spin_1ms", "spin_1ms"), (40, 40), 1, (20, 20)),
]


def shares_of_tenants(busy_gpu: Sandbox, tenants: Tenants) -> list[float]:
    return measured_together(
        [
            busy_gpu.start_python(
                beside(kernel),
                CUDA_DEVICE_SM_LIMIT=str(percent),
                CUDA_DEVICE_MEMORY_SHARED_CACHE=str(busy_gpu.folder / f"usage{number % tenants.containers}"),
            )
            for number, (kernel, percent) in enumerate(zip(tenants.kernels, tenants.limits, strict=True))
        ]
    )


@pytest.mark.real_time(measure=shares_of_tenants)
@pytest.mark.parametrize("tenants", TENANTS, ids=["long beside short", "short beside short", "of one container"])
def test_tenants_have_their_limits(measured: Callable[[], list[float]], tenants: Tenants) -> None:
    assert_measured(
        measured, lambda had: all(-4 < share - part < POINTS for share, part in zip(had, tenants.due, strict=True))
    )


def thinking(d: Driver, k: int, kernel_s: float, seconds: float) -> float:
    """Launch, wait and think, so that the GPU has work for 45 % of the time; return what that was of the time."""
    done, began = 0, time.monotonic()
    while (passed_s := time.monotonic() - began) < seconds:
        d.launch(k)
        d.synchronize()
        done += 1
        time.sleep(kernel_s * 55 / 45)
    return done * kernel_s / passed_s


def host_bound(sandbox: Sandbox) -> list[float]:
    def program() -> None:
        d = Driver.started()
        print(100 * thinking(d, d.kernel("spin_50ms"), 50e-3, 4))

    text = (sys.executable, "-c", text_of(program))
    return [each_alone(sandbox, {"": text}, CUDA_DEVICE_SM_LIMIT=str(percent))[""] for percent in (99, 60, 25)]


@pytest.mark.real_time(measure=host_bound)
def test_a_program_that_waits_for_its_host_pays_for_its_kernels_alone(measured: Callable[[], list[float]]) -> None:
    def holds(shares: list[float]) -> bool:
        free, above, below = shares
        return free > 40 and above > 0.97 * free and 25 - 2 * POINTS < below < 25 + POINTS

    assert_measured(measured, holds)


def with_contexts_that_come(sandbox: Sandbox) -> float:
    def program() -> None:
        def come_and_go() -> None:
            other = Driver()
            while any(launching):
                context = other.context_create()
                time.sleep(5e-3)
                other.context_destroy(context)

        d = Driver.started()
        k, launching = d.kernel("spin_1ms"), [True]
        d.launch(k)
        d.synchronize()
        thread = threading.Thread(target=come_and_go)
        thread.start()
        print(100 * flat_out(d, k, 1e-3, 4))
        launching.clear()
        thread.join()
        d.synchronize()

    return each_alone(sandbox, {"": (sys.executable, "-c", text_of(program))}, CUDA_DEVICE_SM_LIMIT="5")[""]


@pytest.mark.real_time(measure=with_contexts_that_come)
def test_contexts_that_come_while_it_is_off_change_no_share(measured: Callable[[], float]) -> None:
    """The driver counts how often it took a channel off."""
    assert_measured(measured, lambda share: abs(share - 5) < POINTS / 2)


# ---- one program under a limits file, and what it is in the middle of


def second_long() -> None:
    """Launch a kernel of a second, and print when it ended after how many milliseconds of waiting."""
    d = Driver.started()
    k = d.kernel("spin_1s")
    d.launch(d.kernel("spin_1ms"))
    d.synchronize()
    print("ready", flush=True)
    while True:
        input()
        began = time.monotonic()
        d.launch(k)
        print(f"{time.monotonic() - began}", flush=True)
        d.synchronize()
        print(f"{time.monotonic() - began}", flush=True)


def test_a_pause_holds_in_the_middle_of_a_kernel(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 90)) as (process, limits):
        ask(process)
        assert float(line(process)) < 0.5, "the launch was held"
        time.sleep(0.2)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90, paused=True))])
        time.sleep(2)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90))])
        assert 2.9 < float(line(process)) < 5


def test_a_new_limit_holds_in_the_middle_of_a_kernel(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 10)) as (process, limits):
        ask(process)
        line(process)
        time.sleep(1)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90))])
        assert 1.8 < float(line(process)) < 3.5, "at 10 percent it would have taken ten seconds"


def flat_out_for_ever() -> None:
    d = Driver.started()
    k = d.kernel("spin_5ms")
    print("ready", flush=True)
    flat_out(d, k, 5e-3, 60)


def test_a_limit_that_comes_while_it_works_is_the_scheduler_s_to_hold(sandbox: Sandbox) -> None:
    with running(sandbox, flat_out_for_ever, Quota(None, None)) as (process, limits):
        time.sleep(1.5)
        assert GOVERNOR not in threads(process.pid)
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 10))])
        time.sleep(3)
        slot = abi.Usage.from_buffer_copy((sandbox.folder / "usage").read_bytes()).processes[0]
        assert slot.devices[0].limiter == abi.LIMITER_SCHEDULER and GOVERNOR in threads(process.pid)


def test_a_graph_is_held_to_the_limit_of_the_gpu_that_it_is_launched_on(sandbox: Sandbox) -> None:
    """The current context may be on another GPU."""

    def program() -> None:
        d = Driver.started()
        d.primary_context(1)
        stream, graph = d.stream(1), d.kernel_graph(d.kernel("spin_20ms"), 1)
        d.primary_context(0)
        began = time.monotonic()
        for _ in range(25):
            d.graph_launch(graph, stream)
            d.stream_synchronize(stream)
        print(time.monotonic() - began)

    assert float(sandbox.python(program, CUDA_DEVICE_SM_LIMIT="20")) > 1.5, "0.5 s of work at 20 percent"


def forking() -> None:
    """Fork while off: the child uses the GPU as any program that has just begun."""
    d = Driver.started()
    k = d.kernel("spin_100ms")
    print("ready", flush=True)
    for _ in range(20):
        d.launch(k)
    time.sleep(0.3)  # at 5 percent most of it is spent off
    print(Path("/proc/self/maps").read_text().count(" r--s "), flush=True)
    child = os.fork()
    if child == 0:
        names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
        print(json.dumps([names, Path("/proc/self/maps").read_text().count(" r--s ")]), flush=True)
        os.execv(sys.executable, [sys.executable, "-c", "print('went on', flush=True)"])
    os.waitpid(child, 0)
    began = time.monotonic()
    d.synchronize()
    print(f"{time.monotonic() - began}", flush=True)


@pytest.mark.slow
def test_a_child_has_no_governor_and_no_records_of_its_parent(sandbox: Sandbox) -> None:
    with running(sandbox, forking, Quota(None, 20)) as (process, _):
        before = int(line(process))
        names, after = json.loads(line(process))
        assert GOVERNOR not in names
        assert after == before - 2, "the header of the records, and the records"
        assert line(process) == "went on"
        assert 5 < float(line(process)) < 15, "2 s of work at 20 percent"


def test_a_program_that_is_killed_while_off_leaves_nothing(sandbox: Sandbox) -> None:
    with running(sandbox, forking, Quota(None, 5)) as (process, limits):
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        limits_file.write_limits(limits, [(sandbox.uuid, Quota(None, 90))])
    with running(sandbox, second_long, Quota(None, 90)) as (process, _):
        ask(process)
        line(process)
        assert float(line(process)) < 3


def test_a_stopped_program_that_is_off_goes_on_where_it_was(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 50)) as (process, _):
        ask(process)
        line(process)
        time.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        assert 1.4 < float(line(process)) < 4


def idle() -> None:
    d = Driver.started()
    d.launch(d.kernel("spin_1ms"))
    d.synchronize()
    print("ready", flush=True)
    input()


def test_no_records_of_an_idle_program_are_kept(sandbox: Sandbox) -> None:
    with running(sandbox, second_long, Quota(None, 90)) as (process, _):
        await_records(process, 0)
        ask(process)
        await_records(process, 2)
        line(process)
        line(process)
        await_records(process, 0)


def test_a_governor_sleeps_while_there_is_no_work(sandbox: Sandbox) -> None:
    with running(sandbox, idle, Quota(None, 50)) as (process, _):
        await_records(process, 0)
        status = threads(process.pid)[GOVERNOR] / "status"
        before = [each for each in status.read_text().splitlines() if "ctxt" in each]
        time.sleep(1)
        assert [each for each in status.read_text().splitlines() if "ctxt" in each] == before


def test_a_program_without_a_compute_limit_has_no_governor(sandbox: Sandbox) -> None:
    with running(sandbox, idle, Quota(1 << 30, None)) as (process, _):
        assert GOVERNOR not in threads(process.pid)


def test_launches_are_held_on_a_mig_instance(sandbox: Sandbox) -> None:
    instance = f"MIG{sandbox.uuid.removeprefix('GPU')}"
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"devices:\n- uuid: {instance}\n  mig_gpu: 1\n  memory_mib: 8192\n")
    with running(Sandbox(sandbox.folder, sandbox.environment, instance), idle, Quota(None, 50)) as (process, _):
        assert GOVERNOR not in threads(process.pid)


def test_where_the_control_device_cannot_be_had_launches_are_held(sandbox: Sandbox) -> None:
    without_scheduler(sandbox)
    with running(sandbox, idle, Quota(None, 50)) as (process, _):
        assert GOVERNOR not in threads(process.pid)


# ---- periods, slices, and many processes


def half_of_the_time() -> None:
    """Work for four seconds at 50."""
    d = Driver.started()
    k = d.kernel("spin_100ms")
    for _ in range(20):
        d.launch(k)
    d.synchronize()


def waits(sandbox: Sandbox, folder: Path, program: Program, **variables: str) -> int:
    folder.mkdir()
    sandbox.python(program, PFLOG=str(folder), **(variables or {"CUDA_DEVICE_SM_LIMIT": "50"}))
    [profile] = read_profiles(folder)
    return len(list(profile.waits()))


def test_where_calls_take_long_there_are_fewer(sandbox: Sandbox, tmp_path: Path) -> None:
    """A call takes 20 ms: one every 40 ms would be half of the time."""
    configure(sandbox, "channels_off_us: 20000")
    assert 5 < waits(sandbox, tmp_path / "profile", half_of_the_time) < 30, "in 4 s, and not a hundred of them"


def say_that_many_are_at_work() -> None:
    """Write so in the presence file of the own tenant, again and again."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    while True:
        for link in links:
            with suppress(OSError), open(os.readlink(link), "r+b", buffering=0) as file:
                if "presence" in file.name:
                    os.pwrite(file.fileno(), struct.pack("<q", time.monotonic_ns()) * 100, 8 * 100)
        time.sleep(0.2)


def test_where_many_are_at_work_each_makes_fewer_calls(sandbox: Sandbox, tmp_path: Path) -> None:
    def program() -> None:
        d = Driver.started()
        d.launch(d.kernel("spin_2us"))
        d.synchronize()
        threading.Thread(target=say_that_many_are_at_work, daemon=True).start()
        time.sleep(0.1)
        half_of_the_time()

    assert waits(sandbox, tmp_path / "profile", program) < 20, "in 4 s, and not a hundred of them"


def test_a_tenant_counts_once_whatever_it_says(sandbox: Sandbox, tmp_path: Path) -> None:
    def program() -> None:
        d = Driver.started()
        d.launch(d.kernel("spin_2us"))
        d.synchronize()
        print("ready", flush=True)
        say_that_many_are_at_work()

    own = {"CUDA_DEVICE_SM_LIMIT": "50", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / "own")}
    with running(sandbox, program, Quota(None, 30)) as (liar, _):
        count = waits(sandbox, tmp_path / "profile", half_of_the_time, **own)
        liar.kill()
    assert count > 20, "in 4 s, and not six of them"


def test_beside_higher_priority_there_are_fewer_calls(sandbox: Sandbox, tmp_path: Path) -> None:
    """A request of high priority waits for each switch that it meets."""
    limits = sandbox.folder / "limits of low"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, Quota(None, 50, priority=Priority.LOW))]))
    low = {"VGPURUN_LIMITS_FILE": str(limits), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / "low")}
    with running(sandbox, telling_its_slice, Quota(None, 30)) as (high, _):
        began_s = time.monotonic()
        count = waits(sandbox, tmp_path / "profile", half_of_the_time, **low)
        high.kill()
    assert 5 < count < (time.monotonic() - began_s) / 0.1, "one in 160 ms"


def test_who_waits_for_nothing_beside_others_is_found_idle(sandbox: Sandbox) -> None:
    """Two processes of a container share its slice as long as both are at work."""

    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_50ms")
        print("ready", flush=True)
        for _ in range(10):
            d.launch(k)
        time.sleep(60)

    variables = {"CUDA_DEVICE_SM_LIMIT": "60", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / "usage")}
    with (
        sandbox.start_python(telling_its_slice, **variables) as telling,
        sandbox.start_python(program, **variables) as waiting,
    ):
        assert line(telling) == line(waiting) == "ready"
        await_slice(telling, 6000)
        await_slice(telling, 12000)
        telling.kill()
        waiting.kill()


def test_slices_follow_limits_processes_and_priorities(sandbox: Sandbox) -> None:
    with ExitStack() as stack:

        def started(name: str, quota: Quota) -> subprocess.Popen[str]:
            limits = sandbox.folder / f"limits of {name}"
            limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
            files = {"VGPURUN_LIMITS_FILE": str(limits), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(sandbox.folder / name)}
            process = stack.enter_context(sandbox.start_python(telling_its_slice, **files))
            stack.callback(process.kill)
            assert line(process) == "ready"
            return process

        low = Quota(None, 60, priority=Priority.LOW)
        first = started("low", low)
        await_slice(first, 12000)
        second = started("low", low)
        await_slice(first, 6000)
        await_slice(second, 6000)
        high = started("high", Quota(None, 30))
        await_slice(first, 1000)  # beside another of its own priority
        await_slice(second, 1000)
        await_slice(high, 6000)
        second.kill()
        await_slice(first, 100)
        peer = started("peer", low)
        await_slice(first, 1000)
        await_slice(peer, 1000)
        peer.kill()
        high.kill()
        await_slice(first, 12000)


MANY = 24
LONGEST_PERIOD_S = 0.64  # what accrues in a period may be had from its beginning on


@pytest.mark.slow
@pytest.mark.parametrize("containers", [1, MANY])
def test_many_processes_have_no_more_than_their_limits(sandbox: Sandbox, containers: int) -> None:
    """A busy machine makes it longer, never shorter."""
    configure(sandbox, "context_switch_us: 0")
    (sandbox.folder / "sim.yaml").write_text((sandbox.folder / "sim.yaml").read_text().replace("8192", "81920"))
    percent = 48 // containers

    def program() -> None:
        d = Driver.started()
        k, short = d.kernel("spin_5ms"), d.kernel("spin_2us")
        print("ready", flush=True)
        input()
        began = time.monotonic()
        for _ in range(40):
            d.launch(k)
        d.synchronize()
        for _ in range(5):  # once what is owed has been paid
            time.sleep(20e-3)
            d.launch(short)
            d.synchronize()
        print(began, time.monotonic(), flush=True)

    with ExitStack() as stack:
        processes = []
        for number in range(MANY):
            usage = str(sandbox.folder / f"usage{number % containers}")
            variables = {"CUDA_DEVICE_SM_LIMIT": str(percent), "CUDA_DEVICE_MEMORY_SHARED_CACHE": usage}
            processes.append(stack.enter_context(sandbox.start_python(program, **variables)))
            stack.callback(processes[-1].kill)
        go_on_together(processes)
        times = [tuple(map(float, line(process).split())) for process in processes]
    spans = [end - began for began, end in times]
    if containers == 1:
        spans = [max(end for _, end in times) - min(began for began, _ in times)]
    work_s = MANY // containers * 40 * 5e-3 - 20e-3  # which accrue beforehand
    assert min(spans) + LONGEST_PERIOD_S > work_s / (percent / 100)
