"""Profiles of real programs: the same counts as torch.profiler's, and its GPU time."""

from __future__ import annotations

from collections import Counter

import pytest
from runners import Local, answer

from vgpurun.profiles.model import CopyKind
from vgpurun.profiles.reader import FileProfile, read_profiles


@pytest.fixture(scope="module")
def profiled(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, FileProfile]:
    """What torch.profiler and the profile say of one run."""
    folder = tmp_path_factory.mktemp("profile")
    runner = Local(python)
    seen = answer(runner.run(["--profile", str(folder)], runner.program("torch_profiled.py")))
    return seen, max(read_profiles(folder), key=lambda profile: len(profile.totals))


def test_launches_are_those_that_torch_saw(profiled: tuple[dict, FileProfile]) -> None:
    seen, profile = profiled
    assert sum(kernel.launches for kernel in profile.kernels) == seen["kernels"]
    assert not [
        kernel.name for kernel in profile.kernels if kernel.name.startswith("kernel 0x")
    ]  # the driver has names


def test_copies_are_those_that_torch_saw(profiled: tuple[dict, FileProfile]) -> None:
    seen, profile = profiled
    copies = Counter(call.kind for call in profile.calls() if call.kind is not None)
    assert copies[CopyKind.HOST_TO_DEVICE] == seen["copies_to_device"]
    assert copies[CopyKind.DEVICE_TO_HOST] == seen["copies_to_host"]


def test_gpu_time_is_that_of_torch(profiled: tuple[dict, FileProfile]) -> None:
    seen, profile = profiled
    assert sum(kernel.gpu_ns for kernel in profile.kernels) / 1000 == pytest.approx(seen["kernels_us"], rel=0.02)
