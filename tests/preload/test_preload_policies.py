"""When a compute limit holds, who goes first, and the pause, on the simulated driver in real time.

The machine may be busy, so the bounds are wide.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sandbox import UUID, Sandbox
from together import compared, measured_together, started, work

from cuda_driver import Driver
from support import assert_measured
from support.programs import Program, text_of
from support.second_user import UID, needs_two_users
from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.storage import tenants

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("busy_gpu")]


@contextmanager
def tenant(sandbox: Sandbox, name: str, quota: Quota, program: Program = compared) -> Iterator[subprocess.Popen[str]]:
    """A program under a limits file and a usage file of its own, as in a container of its own."""
    limits = sandbox.folder / f"limits-{name}"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
    usage = sandbox.folder / f"usage-{name}"
    variables = {"VGPURUN_LIMITS_FILE": str(limits), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(usage)}
    with sandbox.start_python(program, **variables) as process:
        try:
            yield process
        finally:
            process.kill()


def shares(sandbox: Sandbox, *quotas: Quota, program: Program = compared) -> list[float]:
    """Return the share of each when all work as much as they can."""
    with ExitStack() as stack:
        return measured_together(
            [stack.enter_context(tenant(sandbox, str(i), quota, program)) for i, quota in enumerate(quotas)]
        )


def test_who_is_alone_is_limited_by_some_policies(sandbox: Sandbox) -> None:
    """By HAMi's words, too. Each is on a GPU of its own, at the same time: only these are at work."""
    hami = {
        word: {**sandbox.own_gpu(), "CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": word}
        for word in ("force", "default", "DISABLE")
    }
    ours = {policy: sandbox.own_gpu(Quota(None, 20, policy)) for policy in (SmPolicy.BURST, SmPolicy.OFF)}

    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_2ms")
        work(d, 0.3, lambda: d.launch(k))
        print(work(d, 1.2, lambda: d.launch(k)))

    def share(variables: dict[str, str]) -> float:
        return float(sandbox.python(program, **variables))

    def all_shares() -> dict[str | SmPolicy, float]:
        with ThreadPoolExecutor(len(hami) + len(ours)) as pool:
            return dict(zip([*hami, *ours], pool.map(share, [*hami.values(), *ours.values()]), strict=True))

    assert_measured(
        all_shares,
        lambda seen: all(0.25 < share < 0.35 if who == "force" else 0.9 < share < 1.01 for who, share in seen.items()),
    )


def shares_of_bursts(busy_gpu: Sandbox) -> list[float]:
    return shares(busy_gpu, Quota(None, 20, SmPolicy.BURST), Quota(None, 40, SmPolicy.BURST))


@pytest.mark.real_time(measure=shares_of_bursts)
def test_bursts_together_are_weighted(measured: Callable[[], list[float]]) -> None:
    assert_measured(measured, lambda seen: 0.27 < seen[0] < 0.4 and 0.58 < seen[1] < 0.74)


def among_thousands() -> None:
    """Print the share of 3 s; thousands of folders have been looked through by then."""
    d, k = started()
    print("ready", flush=True)
    input()
    work(d, 5, lambda: d.launch(k))
    print(work(d, 3, lambda: d.launch(k)), flush=True)
    work(d, 60, lambda: d.launch(k))


@contextmanager
def folders_of_a_stranger(uuid: str) -> Iterator[None]:
    """Make what programs of another user have left, 20,000 of them."""
    first, *others = [Path(abi.LOCK_DIR) / f"strange-{os.getpid()}-{number}" for number in range(20_000)]
    tenants.make_lock_dir()
    files = {
        "limits": limits_file.limits_bytes([(uuid, Quota(None, 50))]),
        abi.PRESENCE_NAME: bytes(abi.PRESENCE_BYTES),
    }
    try:
        for folder in (first, *others):
            folder.mkdir()
            for name, content in files.items():
                if folder is first:
                    (folder / name).write_bytes(content)
                    os.utime(folder / name, (0, 0))
                else:
                    (folder / name).hardlink_to(first / name)
            os.chown(folder, UID, UID)
        yield
    finally:
        for folder in (first, *others):
            shutil.rmtree(folder, ignore_errors=True)


# Others on this machine would look through them too: they are measured beside no other test.
@needs_two_users
@pytest.mark.parametrize("policy", [pytest.param(SmPolicy.HARD, marks=pytest.mark.exhaustive), SmPolicy.BURST])
def test_thousands_of_folders_of_another_user_change_no_share(busy_gpu: Sandbox, policy: SmPolicy) -> None:
    def measure() -> list[float]:
        return shares(busy_gpu, *(Quota(None, percent, policy) for percent in (75, 25)), program=among_thousands)

    def beside_them() -> list[float]:
        with folders_of_a_stranger(busy_gpu.uuid):
            return measure()

    assert_measured(
        lambda: (measure(), beside_them()),
        lambda seen: all(abs(without - beside) < 0.01 for without, beside in zip(*seen, strict=True)),
    )


def shares_with_and_without_a_limit(busy_gpu: Sandbox) -> list[float]:
    return shares(busy_gpu, Quota(None, 30), Quota(None, None))


@pytest.mark.real_time(measure=shares_with_and_without_a_limit)
def test_without_a_limit_what_is_left(measured: Callable[[], list[float]]) -> None:
    assert_measured(measured, lambda seen: 0.25 < seen[0] < 0.35 and 0.6 < seen[1] < 0.76)


def shares_by_priority(busy_gpu: Sandbox) -> list[float]:
    return shares(busy_gpu, Quota(None, None), Quota(None, None, SmPolicy.HARD, Priority.LOW))


@pytest.mark.real_time(measure=shares_by_priority)
def test_low_priority_gets_what_is_left_and_does_not_starve(measured: Callable[[], list[float]]) -> None:
    """At least a kernel of 2 ms after the longest wait, 250 ms."""
    assert_measured(measured, lambda seen: 0.8 < seen[0] < 1.01 and 0.004 < seen[1] < 0.15)


def test_words_that_are_not_known_hold_the_limit(sandbox: Sandbox) -> None:
    limits = {"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "often", "CUDA_TASK_PRIORITY": "first"}

    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_2ms")
        print(work(d, 1.5, lambda: d.launch(k)))

    result = sandbox.run([sys.executable, "-c", text_of(program)], **limits)
    assert float(result.stdout) < 0.4
    for word in ("often", "first"):
        assert result.stderr.count(f"'{word}'") == 1, result.stderr


def tell_long_launches() -> None:
    """Print for each launch that takes long: when the one before it began, and when it began and ended."""
    d = Driver.started()
    k = d.kernel("spin_2ms")
    work(d, 0.3, lambda: d.launch(k))
    print("ready", flush=True)
    before = began = ended = time.monotonic()
    while True:
        before, began = began, time.monotonic()
        d.launch(k)
        ended = time.monotonic()
        if ended - began > 0.2:
            print(json.dumps([before, began, ended]), flush=True)


def pause(path: Path, quota: Quota, paused: bool, gpu: str = UUID) -> float:
    """Pause, or end it; the moment before."""
    now_s = time.monotonic()
    limits_file.write_limits(path, [(gpu, Quota(quota.memory_bytes, quota.sm_percent, paused=paused))])
    return now_s


@pytest.mark.parametrize("quota", [Quota(None, 50), Quota(None, None)], ids=["limited", "unlimited"])
def test_a_pause_holds_launches_and_ends(sandbox: Sandbox, quota: Quota) -> None:
    """However late a busy machine lets the program launch: what begins 100 ms after the pause ends after it."""
    limits = sandbox.folder / "limits-paused"
    with tenant(sandbox, "paused", quota, tell_long_launches) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        paused_s = pause(limits, quota, True)
        time.sleep(0.7)
        resumed_s = pause(limits, quota, False)
        before_s = ended_s = 0.0
        while ended_s < resumed_s:
            before_s, _, ended_s = json.loads(process.stdout.readline())
        assert before_s < paused_s + 0.1
        assert ended_s < resumed_s + 5


def test_while_it_is_paused_memory_goes_on_and_synchronisation_completes(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_2ms")
        work(d, 0.2, lambda: d.launch(k))
        print("ready", flush=True)
        input()
        d.synchronize()
        d.mem_free(d.mem_alloc(1 << 20))
        print("went on", flush=True)
        d.launch(d.kernel("spin_1s"))
        d.synchronize()
        print("done", flush=True)

    limits, quota = sandbox.folder / "limits-paused", Quota(None, 50)
    with tenant(sandbox, "paused", quota, program) as process:
        assert process.stdout.readline() == "ready\n"
        pause(limits, quota, True)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "went on\n"
        time.sleep(0.3)
        process.terminate()
        assert process.wait(timeout=30) == -15, "it can be ended while it waits"
        assert process.stdout.read() == ""


def share_beside_a_pause(busy_gpu: Sandbox) -> float:
    with tenant(busy_gpu, "paused", Quota(None, 70), tell_long_launches) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        pause(busy_gpu.folder / "limits-paused", Quota(None, 70), True, busy_gpu.uuid)
        return shares(busy_gpu, Quota(None, 30, SmPolicy.BURST))[0]


@pytest.mark.real_time(measure=share_beside_a_pause)
def test_who_is_paused_leaves_the_gpu_to_others(measured: Callable[[], float]) -> None:
    assert_measured(measured, lambda share: 0.9 < share < 1.01)
