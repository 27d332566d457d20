"""--mem GUARANTEED:MOST: how it is read and kept, what of it is reserved, and where it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import GIB, MIB, make_gpus

from vgpurun.admission.capacity import GpuCapacity, Share
from vgpurun.admission.grants import Grant
from vgpurun.admission.placement import place
from vgpurun.admission.request import Request
from vgpurun.config.schema import Maxima
from vgpurun.errors import LimitError, NoRoomError
from vgpurun.inventory.reservations import Holder
from vgpurun.limits import limits_file, quota
from vgpurun.limits.device_quotas import quotas_of, toolkit_variables
from vgpurun.limits.model import Limits, quotas_from_json, quotas_to_json
from vgpurun.limits.quota import Quota, parse_size

GPU, OTHER = make_gpus(2)
BOTH = Quota(4 * GIB, guaranteed_bytes=2 * GIB)


def resolved(memory: str | None, **environment: str) -> Quota:
    (found,) = quota.resolve([GPU], Limits.read(memory).memory, None, environment, [0])
    return found


@pytest.mark.parametrize(
    ("text", "guaranteed", "most"),
    [
        ("2g:4g", 2 * GIB, 4 * GIB),
        ("25%:50%", 2 * GIB, 4 * GIB),
        ("512m:50%", 512 * MIB, 4 * GIB),
        ("4g:4g", None, 4 * GIB),
        ("0=1g:2g", GIB, 2 * GIB),
        ("4g", None, 4 * GIB),
    ],
)
def test_reading(text: str, guaranteed: int | None, most: int) -> None:
    assert resolved(text) == Quota(most, guaranteed_bytes=guaranteed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8g:4g", "reserves more than its limit, 4 GiB"),
        ("max:4g", "'max' is what a launch finds left"),
        ("4g:max", "'max' is what a launch finds left"),
        ("4g:", "lacks a size on one side of ':'"),
        (":4g", "lacks a size on one side of ':'"),
        ("1g:2g:3g", "'2g:3g' is not a size"),
        ("100:4g", "too little for any program"),
        ("1g:9g", "is more than GPU 0 has"),
    ],
)
def test_mistakes(text: str, words: str) -> None:
    with pytest.raises(LimitError, match=words):
        resolved(text)


def test_the_toolkits_variables_are_understood() -> None:
    """The lowest of several limits holds; one below what is guaranteed is refused, not mended."""
    assert resolved(None, NVIDIA_GPU_MEMORY_LIMIT="4096") == Quota(4 * GIB)
    assert resolved(None, NVIDIA_GPU_MEMORY_LIMIT="4096", NVIDIA_GPU_MEMORY_REQUEST="2048") == BOTH
    assert resolved("2g:6g", NVIDIA_GPU_MEMORY_LIMIT="4096", NVIDIA_GPU_MEMORY_REQUEST="1024") == BOTH
    assert quota.sets_limits({"NVIDIA_GPU_MEMORY_LIMIT": "4096"})
    for environment, words in (
        ({"NVIDIA_GPU_MEMORY_LIMIT": "4g"}, "NVIDIA_GPU_MEMORY_LIMIT: '4g' is not a whole number of MiB"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "1024"}, "guarantees memory without a limit"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "2048", "NVIDIA_GPU_MEMORY_LIMIT": "1024"}, "more than its limit, 1 GiB"),
    ):
        with pytest.raises(LimitError, match=words):
            resolved(None, **environment)


def test_the_toolkits_variables_are_set() -> None:
    def variables(memory: str | None) -> dict[str, str]:
        return toolkit_variables(quotas_of([GPU, OTHER], Limits.read(memory)))

    assert variables("2g:4g") == {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "2048"}
    assert variables("0=1g,1=2g") == {"NVIDIA_GPU_MEMORY_LIMIT": "2048"}
    assert variables("0=1g") == variables(None) == {}


def test_it_is_kept_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(limits_file.limits_bytes([(GPU.uuid, BOTH), (OTHER.uuid, Quota(GIB))]))
    assert limits_file.read_limits(path) == [(GPU.uuid, BOTH), (OTHER.uuid, Quota(GIB))]
    assert quotas_from_json(quotas_to_json(quotas_of([GPU], Limits.read("2g:4g")))) == [(GPU.uuid, BOTH)]
    assert (quota.show_range(BOTH), quota.shortest_range(BOTH)) == ("2 GiB:4 GiB", "2g:4g")
    assert (quota.show_range(Quota(GIB)), quota.shortest_range(Quota())) == ("1 GiB", "")


def test_more_is_more_of_either() -> None:
    assert Quota(8 * GIB, guaranteed_bytes=2 * GIB).has_more_memory_than(BOTH)
    assert Quota(4 * GIB, guaranteed_bytes=3 * GIB).has_more_memory_than(BOTH)
    assert Quota(4 * GIB).has_more_memory_than(BOTH)
    assert not Quota(3 * GIB, guaranteed_bytes=2 * GIB).has_more_memory_than(BOTH)


def share(held_bytes: int = 0) -> Share:
    return Share(Holder("container", "a", "a", "", "bob", Path("/none"), ()), BOTH, held_bytes)


def test_what_is_guaranteed_is_reserved() -> None:
    """Three of 2 to 4 GiB fit on 8 GiB beside one more of 2; what one uses beyond is not free meanwhile."""
    room = GpuCapacity(GPU, (share(), share(), share()), 0)
    assert (room.reserved_bytes, room.free_bytes) == (6 * GIB, 2 * GIB)
    assert place(Request(Limits.read("2g:8g")), [room], Grant("alice")).limits == Limits.read("2g:8g")
    with pytest.raises(NoRoomError, match="no room for --mem 3g:8g on GPU 0: 2 GiB is free"):
        place(Request(Limits.read("3g:8g")), [room], Grant("alice"))
    borrowed = GpuCapacity(GPU, (share(4 * GIB), share(), share()), 4 * GIB)
    assert borrowed.free_bytes == 0
    with pytest.raises(NoRoomError):
        place(Request(Limits.read("2g:8g")), [borrowed], Grant("alice"))


def test_a_default_is_lowered_to_the_users_most() -> None:
    """Quotas of users count what a container may have at most."""
    grant = Grant("alice", Maxima(memory_per_gpu=parse_size("3g")))
    room = [GpuCapacity(GPU, (), 0)]
    for memory, lowered in (("2g:4g", "2g:3g"), ("3.5g:4g", "3g"), ("1g:2g", "1g:2g")):
        placed = place(Request(Limits.read(memory), defaults=frozenset({"mem"})), room, grant)
        assert placed.limits.memory is not None
        assert placed.limits.memory.text.split("=")[-1] == lowered
