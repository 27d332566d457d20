"""Tenants and their use, for the tests of the history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakes import GIB, make_gpus

from vgpurun import abi
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.metrics.accounting import Account, accounts, reading
from vgpurun.metrics.snapshot import Device, TenantSeen
from vgpurun.metrics.store import HOUR_S, Use, Who

NOW_S = 1_900_000_800.0  # a whole hour
DAY_S = 24 * HOUR_S
GPU = make_gpus(1)[0]
ANN = Who("1", "train", "ann", "container", GPU.uuid, "0", "Test GPU")
BEN = replace(ANN, container="2", name="infer", user="ben")


def device(
    busy_s: float = 0.0,
    used_bytes: int = GIB,
    who: Who = ANN,
    sm_percent: int | None = 50,
    processes: int = 1,
    suspended: int = abi.NOT_SUSPENDED,
    takes_turns: bool = False,
) -> Device:
    tenant = TenantSeen(who.kind, who.container, who.name, who.user, "image")
    read = DeviceReading(GPU.uuid, allocated_bytes=used_bytes, busy_ns=int(busy_s * 1e9), processes=processes)
    tenant.devices.append(
        Device(tenant, GPU, 0, Quota(2 * GIB, sm_percent, suspended=suspended, takes_turns=takes_turns), read)
    )
    return tenant.devices[0]


def use(start_s: float = NOW_S, span_s: int = 10, gpu_s: float = 5.0, memory_bytes: int = GIB) -> Use:
    idle_s, given_back_s = span_s / 2, span_s / 4
    return Use(
        int(start_s), span_s, span_s, span_s, 0, gpu_s, gpu_s / span_s, memory_bytes * span_s, memory_bytes,
        idle_s, given_back_s,
    )  # fmt: skip


def read(path: Path, by: str = "user", since_s: float = 0, until_s: float = 2e10) -> list[Account]:
    with reading(path) as db:
        return accounts(db, by, since_s, until_s)
