"""An administrator's file, the shares that it comes to on a node's GPUs, and the choice among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpurun.errors import ConfigError, KubernetesError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources, Shape, read_offered_resources
from vgpurun.kubernetes.device_plugin.preferred_allocation import choose
from vgpurun.kubernetes.device_plugin.units import Kind, Resource, resources_of
from vgpurun.limits.quota import Quota

GIB = 1 << 30


def gpu(index: int, gib: float = 8, mig: bool = False) -> Gpu:
    return Gpu(index, f"GPU-{index}", "A GPU", int(gib * GIB), index, f"0000:0{index}:00.0", mig)


def written(tmp_path: Path, text: str) -> OfferedResources:
    path = tmp_path / "offer.yaml"
    path.write_text(text)
    return read_offered_resources(path)


def counts(resources: list[Resource]) -> dict[str, dict[str, int]]:
    return {each.name: dict(each.counts) for each in resources}


def test_without_a_file_it_is_alnairs(tmp_path: Path) -> None:
    assert (
        read_offered_resources(None)
        == written(tmp_path, "")
        == OfferedResources("alnair/vgpu-memory", GIB, "alnair/vgpu-compute", ())
    )


def test_what_a_file_can_say(tmp_path: Path) -> None:
    text = """
memory: {name: example.com/memory, unit: 512m}
compute: {name: example.com/compute}
slices:
  small: {mem: 2g, sm: 20, count: 2}
  large: {mem: 4g, gpus: [1]}
"""
    shapes = (Shape("small", 2 * GIB, 20, 2), Shape("large", 4 * GIB, 100, 1, ("1",)))
    assert written(tmp_path, text) == OfferedResources("example.com/memory", GIB // 2, "example.com/compute", shapes)


MISTAKES = {
    "{": "not YAML",
    "[1]": "the file is a list of keys",
    "slice: {}": "has no 'slice'",
    "memory: {unit: 50%}": "less than one byte",
    "memory: {unit: much}": "not a size",
    "memory: {name: vgpu}": "DOMAIN/NAME",
    "memory: {name: kubernetes.io/vgpu}": "DOMAIN/NAME",
    "memory: {name: a/b}\ncompute: {name: a/b}": "both called a/b",
    "slices: [small]": "by its name",
    "slices: {Small: {mem: 1g}}": "a slice's name",
    "slices: {small: 1g}": "list of keys and values",
    "slices: {small: {}}": "not a size",
    "slices: {small: {mem: 10%}}": "one size on every GPU",
    "slices: {small: {mem: 1g, sm: 101}}": "more than the whole GPU",
    "slices: {small: {mem: 1g, count: 0}}": "count is from 1 to 100",
    "slices: {small: {mem: 1g, count: yes}}": "count is from 1 to 100",
    "slices: {small: {mem: 1g, gpus: 0}}": "gpus is a list",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line_with_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        written(tmp_path, text)
    assert MISTAKES[text] in str(error.value) and str(error.value).startswith(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_offered_resources(tmp_path / "none")


def test_units_are_whole_and_never_more_than_the_gpu_has() -> None:
    found = counts(resources_of(OfferedResources(), [gpu(0, 8), gpu(1, 7.99), gpu(2, mig=True)]))
    assert found == {
        "alnair/vgpu-memory": {"GPU-0": 8, "GPU-1": 7},
        "alnair/vgpu-compute": {"GPU-0": 100, "GPU-1": 100},
    }


def test_what_slices_take_is_not_offered_in_units() -> None:
    offered = OfferedResources(shapes=(Shape("s", 2 * GIB, 20, 2), Shape("l", 3 * GIB, 50, 1, ("1",))))
    found = counts(resources_of(offered, [gpu(0), gpu(1)]))
    assert found["alnair/vgpu-memory"] == {"GPU-0": 4, "GPU-1": 1}
    assert found["alnair/vgpu-compute"] == {"GPU-0": 60, "GPU-1": 10}
    assert found["vgpurun.io/slice-s"] == {"GPU-0": 2, "GPU-1": 2}
    assert found["vgpurun.io/slice-l"] == {"GPU-1": 1}


@pytest.mark.parametrize("shape", [Shape("s", 5 * GIB, 10, 2), Shape("s", GIB, 60, 2)])
def test_slices_that_a_gpu_has_no_room_for(shape: Shape) -> None:
    with pytest.raises(KubernetesError, match=r"the slices on GPU 0 \(8 GiB\) are more than it has: 2 x s"):
        resources_of(OfferedResources(shapes=(shape,)), [gpu(0)])


MEMORY = Resource("m", Kind.MEMORY, Quota(memory_bytes=GIB), {"GPU-0": 8, "GPU-1": 8})
SLICE = Resource("s", Kind.SLICE, Quota(GIB, 10), {"GPU-0": 2, "GPU-1": 2})


def units(gpu: int, *numbers: int) -> list[str]:
    return [f"GPU-{gpu}_{number}" for number in numbers]


def test_units_of_one_gpu_are_chosen_where_more_is_left() -> None:
    available = units(0, 0, 1, 2) + units(1, 3, 4, 5, 6)
    assert choose(MEMORY, available, [], 2) == units(1, 3, 4)
    assert choose(MEMORY, available, [], 3, gpu="GPU-0") == units(0, 0, 1, 2)
    assert choose(MEMORY, available, units(0, 1), 2) == units(0, 1, 0)
    assert choose(MEMORY, available, [], 2, left={"GPU-0": 1, "GPU-1": 0.1}) == units(0, 0, 1)


@pytest.mark.parametrize(
    ("available", "wanted", "count", "gpu", "reason"),
    [
        (units(0, 0, 1) + units(1, 0, 1), [], 3, None, "on no single GPU; the most that one has left is 2"),
        (units(0, 0, 1) + units(1, 0), [], 2, "GPU-1", r"not left on GPU GPU-1, .* compute \(1 are left there\)"),
        (units(0, 0, 1) + units(1, 0, 1), units(0, 0) + units(1, 0), 2, None, "already are of several GPUs"),
        (units(0, 0), [], 2, None, "cannot be chosen from 1"),
        (units(0, 0, 1), units(0, 0, 1), 1, None, "cannot be chosen"),
    ],
)
def test_no_choice_would_do(available: list[str], wanted: list[str], count: int, gpu: str, reason: str) -> None:
    with pytest.raises(KubernetesError, match=reason):
        choose(MEMORY, available, wanted, count, gpu)


def test_slices_are_each_of_another_gpu() -> None:
    assert choose(SLICE, units(0, 1) + units(1, 0, 1), [], 1) == units(1, 0)
    assert sorted(choose(SLICE, units(0, 1) + units(1, 0, 1), [], 2)) == units(0, 1) + units(1, 0)
    with pytest.raises(KubernetesError, match="3 of s need 3 GPUs"):
        choose(SLICE, units(0, 0, 1) + units(1, 0, 1), [], 3)
    with pytest.raises(KubernetesError, match="a container has one of a GPU"):
        SLICE.quotas_of(units(0, 0, 1))
