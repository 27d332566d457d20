"""Limits that follow from Ray's account of a task, without Ray."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from vgpurun.errors import GpuError, LimitError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.nested import Share
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.ray.containers import with_limits
from vgpurun.ray.shares import Node, Wish, fractions, gpu_of, limits_of, quota_of, read_wish

MIB = 1 << 20
GPUS = tuple(
    Gpu(i, f"GPU-{i:08d}-aaaa-bbbb-cccc-dddddddddddd", "A GPU", 8192 * MIB, i, f"00000000:0{i}:00.0") for i in range(2)
)
WHOLE = Quota(8192 * MIB)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"CPU": [(0, 1.0)]}, {}),
        ({"GPU": [(0, 0.25)], "CPU": [(0, 1.0)]}, {0: 0.25}),
        ({"GPU": [(0, 1.0), (3, 1.0)]}, {0: 1.0, 3: 1.0}),
        ({"GPU_group_0123ab": [(1, 0.5)], "GPU_group_0_0123ab": [(1, 0.5)]}, {1: 0.5}),
        ({"GPU_group_0123ab": [(1, 0.5)], "node:GPU": [(0, 1.0)], "GPUs": [(0, 1.0)]}, {1: 0.5}),
    ],
)
def test_keys_of_a_placement_group_name_one_share(resources: dict[str, Any], expected: dict[int, float]) -> None:
    assert fractions(resources) == expected


@pytest.mark.parametrize(
    ("number", "visible", "expected"),
    [
        (1, None, 1),
        (0, ["1"], 1),
        (0, ["1", "0"], 1),
        (0, [GPUS[1].uuid], 1),
        (0, [GPUS[1].uuid[:12]], 1),
    ],
)
def test_numbers_of_ray_are_places_in_the_nodes_list(number: int, visible: list[str] | None, expected: int) -> None:
    assert gpu_of(number, visible, GPUS) is GPUS[expected]


@pytest.mark.parametrize(("number", "visible"), [(2, None), (1, ["0"]), (0, ["GPU-elsewhere"])])
def test_a_gpu_that_the_node_does_not_have_is_named(number: int, visible: list[str] | None) -> None:
    with pytest.raises(GpuError):
        gpu_of(number, visible, GPUS)


@pytest.mark.parametrize(
    ("fraction", "wish", "expected"),
    [
        (1.0, Wish(), WHOLE),
        (0.25, Wish(), Quota(2048 * MIB, 25)),
        (0.29, Wish(), Quota(int(8192 * MIB * 0.29 + 1e-3), 29)),  # 0.29 * 100 is less than 29
        (0.01, Wish(), Quota(int(8192 * MIB * 0.01 + 1e-3), 1)),
        (0.5, Wish(mem="1g", sm="10"), Quota(1024 * MIB, 10)),
        (0.5, Wish(mem="100%", sm="100"), Quota(4096 * MIB, 50)),  # a wish only lowers
        (1.0, Wish(sm="40", sm_policy=SmPolicy.BURST), Quota(8192 * MIB, 40, SmPolicy.BURST)),
    ],
)
def test_a_part_of_a_gpu(fraction: float, wish: Wish, expected: Quota) -> None:
    assert quota_of(fraction, GPUS[0], Node(GPUS, wish)) == expected


def test_what_is_less_than_a_percent_is_refused() -> None:
    with pytest.raises(LimitError, match=r"num_gpus=0\.005 is less than 1 %"):
        quota_of(0.005, GPUS[0], Node(GPUS, Wish()))


def test_nothing_is_granted_of_other_gpus() -> None:
    limits = limits_of({GPUS[1].uuid: 0.5}, Node(GPUS, Wish()))
    assert limits == [(GPUS[0].uuid, Quota(memory_bytes=0)), (GPUS[1].uuid, Quota(4096 * MIB, 50))]


def test_within_a_share_a_part_is_of_the_share() -> None:
    share = Share(Path("/share"), ((GPUS[1].uuid, Quota(4096 * MIB, 50)),))
    node = Node.within(share, GPUS, Wish(mem="75%", sm="40"), "")
    assert [(gpu.uuid, gpu.memory_bytes) for gpu in node.gpus] == [(GPUS[1].uuid, 4096 * MIB)]
    assert node.parents == ("/share",)
    assert Node.from_json(node.to_json()) == node
    assert limits_of({GPUS[1].uuid: 0.5}, node) == [(GPUS[1].uuid, Quota(2048 * MIB, 20))]
    assert limits_of({GPUS[1].uuid: 1}, node) == [(GPUS[1].uuid, Quota(3072 * MIB, 20))]
    with pytest.raises(LimitError, match="the share's"):
        Node.within(share, GPUS, Wish(priority=Priority.LOW), "")


def test_a_worker_is_told_all_of_it() -> None:
    node = Node(GPUS, Wish("1g", "50%", SmPolicy.BURST, Priority.LOW), "my.hook")
    assert Node.from_json(node.to_json()) == node


def test_a_wish_is_read() -> None:
    assert read_wish({}) == Wish()
    wish = read_wish({"mem": "4g", "sm": 50, "sm_policy": "burst", "priority": "low"})
    assert wish == Wish("4g", "50", SmPolicy.BURST, Priority.LOW)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("4g", "is a dictionary of mem, sm"),
        ({"memory": "4g"}, "has no 'memory'"),
        ({"mem": "4"}, "too little"),
        ({"sm": 101}, "more than the whole GPU"),
        ({"sm_policy": "soft"}, "not one of hard, burst"),
        ({"priority": 1}, "not one of high, low"),
        ({"sm_policy": ["hard"]}, "not one of"),
    ],
)
def test_a_wish_that_is_not_understood_is_refused(field: Any, words: str) -> None:
    with pytest.raises(LimitError, match=words):
        read_wish(field)


def test_a_container_that_ray_starts_in_another_way_is_refused() -> None:
    with pytest.raises(LimitError, match="not known here"):
        with_limits("enroot start image", {}, [])
    command = with_limits("podman run --rm --entrypoint python an-image", {"A": "b c", "PATH": "/x"}, [Path("/a b")])
    assert shlex.split(command)[2:] == [
        "--rm",
        "--volume=/a b:/a b",
        "--env=A=b c",
        "--entrypoint",
        "python",
        "an-image",
    ]
