"""Which processes a GPU worked for, as root is told of all users (vgpurun/host/gpu_records.py)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from simulated import UUID_A, UUID_B, Machine, driver
from test_channels_from_outside import begun, said

WATCH = f"""
import os, sys
from vgpurun.host.channels import Driver
from vgpurun.host.gpu_records import GpuRecords
driver = Driver()
os.close(driver.open_control())  # it has the simulation's state from then on
os.setresuid(*[int(sys.argv[1])] * 2, 0)
records = GpuRecords(driver)
print(*records.uuids, flush=True)
for line in sys.stdin:
    print([tuple(each) for each in records.read({UUID_A!r})], list(records.read({UUID_B!r})), flush=True, sep="; ")
"""


def in_turn() -> None:
    """Run a kernel of 30 ms at each line."""
    kernel = driver.kernel("spin_30ms")
    print("ready")
    for _ in sys.stdin:
        driver.launch(kernel)
        driver.synchronize()
        print("done")


def watch(machine: Machine, user: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(user)],
        env=machine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    machine.started.append(process)
    return process


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone is told of others")
def test_the_time_of_every_process(machine: Machine) -> None:
    one, other = begun(machine, in_turn), begun(machine, in_turn)
    watcher = watch(machine)
    assert watcher.stdout.readline() == f"{UUID_A} {UUID_B}\n"
    for process in (one, other, one, other):
        assert said(process) == "done"
    found, _, elsewhere = said(watcher).partition("; ")
    assert elsewhere == "[]"
    records = ast.literal_eval(found)
    on_ms: Counter[int] = Counter()
    for (begins, pid, _, number, since_ns), (*_, next_number, until_ns) in pairwise(records):
        assert next_number == number + 1
        on_ms[pid] += (until_ns - since_ns) // 1_000_000 if begins else 0
    assert on_ms[one.pid] >= 30 and on_ms[other.pid] >= 30, records


def in_turn_of_another_user() -> None:
    """Run a kernel of 30 ms at each line."""
    os.setresuid(65534, 65534, 0)
    in_turn()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs programs of two users")
def test_a_user_is_told_which_processes_are_his_own(machine: Machine) -> None:
    own, other = begun(machine, in_turn_of_another_user), begun(machine, in_turn)
    watcher = watch(machine, 65534)
    assert watcher.stdout
    assert watcher.stdout.readline() == f"{UUID_A} {UUID_B}\n"
    for process in (own, other, own, other):
        assert said(process) == "done"
    found = ast.literal_eval(said(watcher).partition("; ")[0])
    assert {pid for _, pid, *_ in found} == {own.pid, 0}
