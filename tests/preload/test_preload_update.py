"""New limits take effect in a running program within 100 ms, from any limit to any other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sandbox import UUID, Sandbox

from cuda_driver import CudaError, Driver
from support import assert_measured
from support.programs import Program, text_of
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.quota import Quota

pytestmark = pytest.mark.real_time

GIB = 1 << 30
SOON_S = 0.1


@contextmanager
def running(sandbox: Sandbox, program: Program, quota: Quota) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A program under a limits file, once it has said that it is ready; and the file."""
    limits = sandbox.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(sandbox.uuid, quota)]))
    environment = sandbox.variables(VGPURUN_LIMITS_FILE=str(limits))
    with subprocess.Popen(
        [sys.executable, "-u", "-c", text_of(program)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process, limits
        finally:
            process.kill()


def change(limits: Path, quota: Quota, gpu: str = UUID) -> float:
    """Change the limits; the moment before."""
    now_s = time.monotonic()
    limits_file.write_limits(limits, [(gpu, quota)])
    return now_s


def line(process: subprocess.Popen[str]) -> list[float]:
    values: list[float] = json.loads(process.stdout.readline())
    return values


def watch_size() -> None:
    """Print the size of the GPU whenever it changes, and when the one before was last asked for.

    However late a busy machine lets the program look, from SOON_S after the change on it must not see the old one.
    """
    d = Driver.started()
    seen = d.device_total_mem()
    print("ready")
    last_s = 0.0
    while True:
        now_s = time.monotonic()
        size = d.device_total_mem()
        if size != seen:
            seen = size
            print(json.dumps([last_s, size]))
        last_s = now_s
        time.sleep(0.001)


def test_a_memory_limit_is_seen_at_once(sandbox: Sandbox) -> None:
    with running(sandbox, watch_size, Quota(GIB)) as (process, limits):
        for size in (3 * GIB, GIB // 2, 2 * GIB):
            changed_s = change(limits, Quota(size))
            old_s, seen = line(process)
            assert seen == size and old_s - changed_s < SOON_S


def watch_refusals() -> None:
    """Hold 1 GiB and try for 64 MiB more again and again.

    When that begins or ceases to work, print when it last was not so.
    """
    d = Driver.started()
    d.mem_alloc(1 << 30)
    works = True
    print("ready")
    last_s = 0.0
    while True:
        now_s = time.monotonic()
        try:
            d.mem_free(d.mem_alloc(64 << 20))
            now = True
        except CudaError:
            now = False
        if now != works:
            works = now
            print(json.dumps([last_s, now, d.mem_used() >> 20]))
        last_s = now_s
        time.sleep(0.001)


def test_below_what_is_held_all_is_refused_and_nothing_taken(sandbox: Sandbox) -> None:
    with running(sandbox, watch_refusals, Quota(2 * GIB)) as (process, limits):
        changed_s = change(limits, Quota(GIB // 2))
        old_s, works, used_mib = line(process)
        assert not works and old_s - changed_s < SOON_S
        assert used_mib == 512, "the size that it is shown: what it holds past that does not show"
        readings = usage_file.read_usage(sandbox.folder / "usage", [UUID])
        assert readings is not None and readings[0].memory_used_bytes == GIB + (518 << 20)
        changed_s = change(limits, Quota(2 * GIB))
        old_s, works, used_mib = line(process)
        assert works and old_s - changed_s < SOON_S and used_mib == 1024 + 518
        process.kill()
        assert process.stderr.read().count("limit 512 MiB") == 1, "a refusal explains itself once"


def watch_share() -> None:
    """Print every 100 ms how much of the last 100 ms the GPU worked for this program."""
    d = Driver.started()
    k = d.kernel("spin_1ms")
    print("ready")
    while True:
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + 0.1:
            for _ in range(5):
                d.launch(k)
            d.synchronize()
            count += 5
        end = time.monotonic()
        print(json.dumps([begin, end, count * 1e-3 / (end - begin)]))


def mean_after_a_change(sandbox: Sandbox, before: int | None, after: int | None) -> float:
    """The mean of a second that begins 100 ms after the change."""
    with running(sandbox, watch_share, Quota(None, before)) as (process, limits):

        def mean_after(percent: int | None, delay_s: float) -> float:
            begin_s = change(limits, Quota(None, percent), sandbox.uuid) + delay_s
            while (window := line(process))[0] < begin_s:
                pass
            shares = [share for _, _, share in [window, *(line(process) for _ in range(9))]]
            return sum(shares) / len(shares)

        mean_after(before, 0)
        return mean_after(after, SOON_S)


@pytest.mark.real_time(measure=mean_after_a_change)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (20, 80),
        (None, 30),
        pytest.param(80, 20, marks=pytest.mark.exhaustive),
        pytest.param(30, None, marks=pytest.mark.exhaustive),
    ],
)
def test_a_compute_limit_takes_effect_at_once(
    measured: Callable[[], float], before: int | None, after: int | None
) -> None:
    most = (after or 100) / 100
    assert_measured(measured, lambda mean: most * 0.7 < mean < most * 1.2)
