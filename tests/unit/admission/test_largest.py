"""The largest launch that would start is one that starts, and the next larger one is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB, MIB, make_gpus

from vgpurun.admission.capacity import GpuCapacity, Share
from vgpurun.admission.grants import Grant
from vgpurun.admission.largest import largest
from vgpurun.admission.placement import place
from vgpurun.admission.request import Request
from vgpurun.cli.views import free as view
from vgpurun.config.schema import Maxima
from vgpurun.errors import LimitError, NoRoomError, QuotaError
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.model import Limits
from vgpurun.limits.quota import Quota, parse_size

GPUS = make_gpus(3)


def some_share(number: int) -> Share:
    user = random.choice(["alice", "bob"])
    quota = Quota(random.choice([None, *[random.randint(1, 3000) * MIB] * 9]), random.choice([None, 5, 25]))
    name = f"{user}-{number}"
    return Share(Holder("container", name, name, "", user, Path("/none"), ()), quota, 0)


def some_capacity(index: int) -> GpuCapacity:
    shares = tuple(some_share(10 * index + number) for number in range(random.choice([0, 1, 2, 4])))
    return GpuCapacity(GPUS[index], shares, random.choice([0, 0, 300 * MIB, 3 * GIB]))


def some_maxima() -> Maxima:
    sizes = [None, None, parse_size("3g"), parse_size("40%")]
    return Maxima(
        memory=random.choice(sizes),
        memory_per_gpu=random.choice(sizes),
        sm=random.choice([None, None, 60, 120]),
        sm_per_gpu=random.choice([None, None, 30]),
        containers=random.choice([None, None, 2, 5]),
        gpus=random.choice([None, None, ("0", "2")]),
    )


def starts(gpu: int, capacities: list[GpuCapacity], grant: Grant, memory_bytes: int, sm_percent: int | None) -> bool:
    limits = Limits.read(f"{memory_bytes}b", sm_percent and str(sm_percent))
    try:
        place(Request(limits, f"device={gpu}"), capacities, grant)
    except (NoRoomError, QuotaError, LimitError):
        return False
    return True


@pytest.mark.parametrize("seed", range(100))
def test_it_starts_and_more_does_not(seed: int) -> None:
    random.seed(seed)
    capacities = [some_capacity(index) for index in range(3)]
    grant = Grant("alice", some_maxima())
    for index, capacity in enumerate(capacities):
        found = largest(capacity, capacities, grant)
        if isinstance(found, str):
            assert found
            least_sm = 1 if grant.maxima.sm or grant.maxima.sm_per_gpu else None
            assert not starts(index, capacities, grant, GIB // 2, least_sm)
            continue
        assert starts(index, capacities, grant, found.memory_bytes, found.sm_percent)
        # Use by programs outside is let be for 5 % of the GPU's memory.
        slack_bytes = min(capacity.outside_bytes, capacity.gpu.memory_bytes * 5 // 100)
        assert not starts(index, capacities, grant, found.memory_bytes + slack_bytes + MIB, found.sm_percent)
        if (found.sm_percent or 0) < 99:
            assert not starts(index, capacities, grant, found.memory_bytes, (found.sm_percent or 0) + 1)


def test_why_none_would_start_is_said() -> None:
    def why(capacity: GpuCapacity, **maxima: Any) -> str:
        found = largest(capacity, [capacity], Grant("alice", Maxima(**maxima)))
        assert isinstance(found, str)
        (line,) = view.table([capacity], [found], None)[1:]
        assert line.endswith(f"none: {found}")
        return found

    def held(quota: Quota) -> GpuCapacity:
        return GpuCapacity(
            GPUS[0], (Share(Holder("container", "c", "c1", "", "alice", Path("/none"), ()), quota, 0),), 0
        )

    assert why(held(Quota(None, 20))) == "c1 runs without --mem"
    assert why(held(Quota(8 * GIB))) == "all memory is reserved or in use"
    assert why(held(Quota(GIB)), gpus=("1",)) == "your quota leaves this GPU out"
    assert why(held(Quota(GIB)), memory=parse_size("1g")) == "your quota is used up"
    other = held(Quota(GIB, 100))
    other = replace(
        other, shares=tuple(replace(each, holder=replace(each.holder, user="bob")) for each in other.shares)
    )
    assert why(other, sm=50) == "all time is reserved, and your quota takes --sm"
