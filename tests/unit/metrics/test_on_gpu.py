"""The time that owners had GPUs, from records of context switches."""

from __future__ import annotations

import os
import pwd
import subprocess
from types import SimpleNamespace
from typing import Any

from vgpurun.host.gpu_records import GpuTimes, Record
from vgpurun.metrics.families import FAMILIES
from vgpurun.metrics.on_gpu import OnGpu, Owner
from vgpurun.metrics.snapshot import Snapshot, TenantSeen, had_gpus

UUID = "GPU-1"
SECOND = 1_000_000_000


class Records:
    """A GPU of which so much is recorded."""

    uuids = (UUID,)

    def __init__(self) -> None:
        self.new: list[Record] = []
        self.time_ns = 0

    def add(self, begins: bool, pid: int, number: int, at_s: float) -> None:
        self.new.append(Record(begins, pid, 1, number, int(at_s * SECOND)))

    def read(self, _: str) -> list[Record]:
        found, self.new = self.new, []
        return found

    def now_ns(self, _: str) -> int:
        return self.time_ns


def test_from_a_beginning_to_the_next() -> None:
    records: Any = Records()
    on_gpu, own = OnGpu(GpuTimes(records), print), Owner("", pwd.getpwuid(os.geteuid()).pw_name)
    with subprocess.Popen(["sleep", "60"]) as other:
        records.add(True, os.getpid(), 65534, 1)
        records.add(False, os.getpid(), 65535, 3)
        records.add(True, other.pid, 0, 4)
        records.time_ns = 6 * SECOND
        on_gpu.read()
        assert on_gpu.seconds() == {(UUID, own): 4.0}, "two of each, of one user"
        records.time_ns = 7 * SECOND
        on_gpu.read()
        assert on_gpu.seconds() == {(UUID, own): 5.0}, "it is there still"
        records.add(False, other.pid, 5, 20)  # records between are lost, and with them who had the time
        records.add(True, 0xFFFFFFFF, 6, 21)
        records.time_ns = 30 * SECOND
        on_gpu.read()
        assert on_gpu.seconds() == {(UUID, own): 5.0}
        other.kill()
    on_gpu.forget_ended()
    assert on_gpu.seconds() == {(UUID, own): 5.0}
    on_gpu.close()
    records.time_ns = 40 * SECOND
    on_gpu.read()
    assert on_gpu.seconds() == {(UUID, own): 5.0}


def test_what_is_shown_of_it() -> None:
    """A container by its name, or by a short id where it is not known, and all others by their users."""
    known, other = "a" * 64, "b" * 64
    had: Any = {(UUID, Owner(known, "")): 1.0, (UUID, Owner(other, "")): 2.0, (UUID, Owner("", "bob")): 3.0}
    on_gpu: Any = SimpleNamespace(seconds=lambda: had)
    tenants = [TenantSeen("container", known, "train", "ann", "image")]
    family = next(each for each in FAMILIES if each.name == "vgpurun_on_gpu_seconds_total")
    snapshot = Snapshot((), tenants, {}, {}, 0.0, 0.0, had=had_gpus(on_gpu, tenants))
    labels = family.scope.labels.values()
    rows = [(*(read(row) for read in labels), family.value(row)) for row in family.scope.rows(snapshot)]
    assert rows == [("train", "ann", UUID, 1.0), ("b" * 12, "", UUID, 2.0), ("", "bob", UUID, 3.0)]
