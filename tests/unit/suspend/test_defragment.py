"""The cheapest moves after which a launch fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fakes import make_gpus

from vgpurun.admission.capacity import GpuCapacity, Share
from vgpurun.admission.request import Candidates
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.quota import Quota
from vgpurun.suspend.defragment import Move, Wanted, cheapest

GIB = 1 << 30


def share(name: str, gpu: str, reserved_gib: int, held_gib: int, sm: int | None = None) -> Share:
    quota = Quota(reserved_gib * GIB, sm)
    holder = Holder("container", name, name, "image", "user", Path("/nowhere"), ((gpu, quota),))
    return Share(holder, quota, held_gib * GIB)


def host(*gpus: Mapping[str, tuple[int, int]]) -> list[GpuCapacity]:
    """Return GPUs of 16 GiB with shares: what each has reserved, and what it holds, in GiB."""
    found = []
    for gpu, shares in zip(make_gpus(len(gpus), memory_bytes=16 * GIB), gpus, strict=True):
        there = tuple(share(name, gpu.uuid, *sizes) for name, sizes in shares.items())
        found.append(GpuCapacity(gpu, there, sum(held for _, held in shares.values()) * GIB))
    return found


def wanted(capacities: list[GpuCapacity], gib: int, count: int = 1, fixed: int | None = None) -> Wanted:
    gpus = tuple(capacity.gpu for capacity in capacities)
    chosen = Candidates((), gpus, count) if fixed is None else Candidates((gpus[fixed],))
    return Wanted(chosen, {gpu.uuid: Quota(gib * GIB) for gpu in gpus})


def shown(moves: list[Move] | None) -> list[str] | None:
    return None if moves is None else [f"{move.holder.name}: {move.old.number} -> {move.new.number}" for move in moves]


def test_what_fits_already_moves_nothing() -> None:
    found = host({"a": (8, 8)}, {})
    assert shown(cheapest(wanted(found, 16), found, lambda *_: True)) == []


def test_the_fewest_bytes_are_copied() -> None:
    found = host({"large": (6, 6), "idle": (6, 1)}, {"other": (4, 4)})
    assert shown(cheapest(wanted(found, 10, fixed=0), found, lambda *_: True)) == ["idle: 0 -> 1"]


def test_one_makes_room_for_another() -> None:
    found = host({"a": (10, 3)}, {"b": (8, 2)}, {"c": (7, 5)})
    plan = cheapest(wanted(found, 16, fixed=0), found, lambda *_: True)
    assert shown(plan) == ["b: 1 -> 2", "a: 0 -> 1"]


def test_several_gpus() -> None:
    found = host({"a": (4, 1)}, {"b": (4, 2)}, {"c": (4, 3)})
    plan = shown(cheapest(wanted(found, 16, count=2), found, lambda *_: True))
    assert plan is not None and sorted(plan) == ["a: 0 -> 2", "b: 1 -> 2"]


def test_what_stays_stays() -> None:
    found = host({"a": (6, 1), "b": (6, 5)}, {"c": (6, 6)})
    stays = cheapest(wanted(found, 10, fixed=0), found, lambda holder, _: holder.name != "a")
    assert shown(stays) == ["b: 0 -> 1"]
    assert cheapest(wanted(found, 10, fixed=0), found, lambda *_: False) is None


def test_a_full_host_is_given_up() -> None:
    found = host(*({f"{gpu}-{number}": (2, 1) for number in range(8)} for gpu in range(8)))
    assert cheapest(wanted(found, 16), found, lambda *_: True) is None


def test_a_busy_host_is_looked_through_in_time() -> None:
    """Eight GPUs, and fifty shares of which none alone makes enough room."""
    found = host(*({f"{gpu}-{number}": (2, 1 + number % 2) for number in range(6)} for gpu in range(8)))
    plan = cheapest(wanted(found, 8), found, lambda *_: True)
    assert plan is not None and len(plan) == 2
