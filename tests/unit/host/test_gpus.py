"""Which GPUs --gpus means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import make_gpus

from vgpurun.errors import GpuError
from vgpurun.host.gpu_names import match_gpu, select_gpus

GPUS = make_gpus(4)


def indexes(text: str) -> list[int]:
    return [gpu.index for gpu in select_gpus(text, GPUS)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", [0, 1, 2, 3]),
        ("2", [0, 1]),
        ("4", [0, 1, 2, 3]),
        ("device=3", [3]),
        ("device=2,0", [0, 2]),
        ('"device=2,0"', [0, 2]),
        ("'device=2,0'", [0, 2]),
        ("2,0", [0, 2]),
        ("0,0", [0]),
        ("device=1, 2", [1, 2]),
        (GPUS[1].uuid, [1]),
        (f"device={GPUS[3].uuid},{GPUS[0].uuid}", [0, 3]),
        ("gpu-00000002", [2]),
        ("device=1,GPU-00000001", [1]),
    ],
)
def test_chosen_gpus(text: str, expected: list[int]) -> None:
    assert indexes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "5", "-1", "none", "device=", "device=4", "device=0,,1", "device=GPU-9", "GPU-", "GPU-0000", "0;1"],
)
def test_gpus_that_there_are_not(text: str) -> None:
    with pytest.raises(GpuError, match="--gpus"):
        select_gpus(text, GPUS)


def test_the_error_shows_what_there_is() -> None:
    with pytest.raises(GpuError, match="--gpus 'device=7': no GPU '7' among 0, 1, 2, 3; use all") as caught:
        select_gpus("device=7", GPUS)
    assert GPUS[0].uuid not in str(caught.value), "eight of them would be a screenful"
    with pytest.raises(GpuError, match=f"no GPU 'GPU-9' among .*{GPUS[3].uuid}"):
        select_gpus("GPU-9", GPUS)
    with pytest.raises(GpuError, match=f"'GPU-0000' is the beginning of several UUIDs: .*{GPUS[3].uuid}.*; write more"):
        select_gpus("GPU-0000", GPUS)


def test_a_gpu_in_mig_mode_is_refused_only_when_it_is_chosen() -> None:
    gpus = [GPUS[0], replace(GPUS[1], mig_enabled=True)]
    assert [gpu.index for gpu in select_gpus("device=0", gpus)] == [0]
    with pytest.raises(GpuError, match="GPU 1 is in MIG mode"):
        select_gpus("all", gpus)


def test_an_ambiguous_beginning_names_nothing() -> None:
    assert match_gpu("GPU-0000000", GPUS) is None
    assert match_gpu("GPU-0000000", GPUS[:1]) == GPUS[0]
