"""Profiles of real programs: the same counts as torch.profiler's, and its GPU time."""

from __future__ import annotations

from collections import Counter

import pytest
from runners import Local, answer

from vgpurun.profiles.model import CopyKind
from vgpurun.profiles.reader import FileProfile, read_profiles

Seen = tuple[dict[str, float], FileProfile]
EXACT = 0.02


def profiled_run(python: str, factory: pytest.TempPathFactory, *arguments: str) -> Seen:
    """What torch.profiler and the profile say of one run."""
    folder = factory.mktemp("profile")
    runner = Local(python)
    seen = answer(runner.run(["--profile", str(folder)], [*runner.program("torch_profiled.py"), *arguments]))
    profile = max(read_profiles(folder), key=lambda profile: len(profile.totals))
    print(seen, f"profile: {gpu_us(profile):.0f} us of kernels")
    return seen, profile


def gpu_us(profile: FileProfile) -> float:
    return sum(kernel.gpu_ns for kernel in profile.kernels) / 1000


@pytest.fixture(scope="module")
def busy(python: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return profiled_run(python, tmp_path_factory)


@pytest.fixture(scope="module")
def launch_bound(python: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return profiled_run(python, tmp_path_factory, "launch-bound")


@pytest.mark.parametrize("run", ["busy", "launch_bound"])
def test_launches_are_those_that_torch_saw(request: pytest.FixtureRequest, run: str) -> None:
    seen, profile = request.getfixturevalue(run)
    assert sum(kernel.launches for kernel in profile.kernels) == seen["kernels"]
    assert not [
        kernel.name for kernel in profile.kernels if kernel.name.startswith("kernel 0x")
    ]  # the driver has names


@pytest.mark.parametrize("run", ["busy", "launch_bound"])
def test_copies_are_those_that_torch_saw(request: pytest.FixtureRequest, run: str) -> None:
    seen, profile = request.getfixturevalue(run)
    copies = Counter(call.kind for call in profile.calls() if call.kind is not None)
    assert copies[CopyKind.HOST_TO_DEVICE] == seen["copies_to_device"]
    assert copies[CopyKind.DEVICE_TO_HOST] == seen["copies_to_host"]


def test_gpu_time_of_a_busy_gpu_is_that_of_torch(busy: Seen) -> None:
    seen, profile = busy
    assert gpu_us(profile) == pytest.approx(seen["kernels_us"], rel=EXACT)


def test_gpu_time_of_a_gpu_that_waits_has_gaps_in_it_and_no_more(launch_bound: Seen) -> None:
    """As docs/profiling.md says: at least the kernels, at most all of the time from the first to the last."""
    seen, profile = launch_bound
    least_us, most_us = seen["kernels_us"], seen["from_first_to_last_us"]
    assert least_us * (1 - EXACT) <= gpu_us(profile) <= most_us * (1 + EXACT)
