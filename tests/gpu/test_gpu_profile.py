"""Profiles of real programs: the same counts as torch.profiler's, and its GPU time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from runners import Local, answer

from vgpurun.profiles.model import CopyKind
from vgpurun.profiles.names import short_kernel_name
from vgpurun.profiles.reader import FileProfile, read_profiles

Seen = tuple[dict[str, Any], FileProfile]
EXACT = 0.02


def profiled_run(python: str, factory: pytest.TempPathFactory, *arguments: str) -> Seen:
    """Return a run as torch.profiler and the profile tell it."""
    folder = factory.mktemp("profile")
    runner = Local(python)
    seen = answer(runner.run(["--profile", str(folder)], [*runner.program("torch_profiled.py"), *arguments]))
    profile = max(read_profiles(folder), key=lambda profile: len(profile.totals))
    figures = {name: figure for name, figure in seen.items() if name != "launches"}
    print(figures, f"profile: {launches(profile)} launches, {gpu_us(profile):.0f} us of kernels")
    return seen, profile


def launches(profile: FileProfile) -> int:
    return sum(kernel.launches for kernel in profile.kernels)


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
    assert launches(profile) == seen["kernels"], different_launches(seen, profile)
    unnamed = [kernel for kernel in profile.kernels if kernel.name.startswith("kernel 0x")]
    assert not unnamed, f"{unnamed}: the driver has names\n{different_launches(seen, profile)}"


def different_launches(seen: dict[str, Any], profile: FileProfile) -> str:
    """The kernels that one side counted more often: a line for each."""
    of_torch, of_profile = Counter[str](), Counter[str]()
    for name, count in seen["launches"].items():
        of_torch[short_kernel_name(name, 120)] += count
    for kernel in profile.kernels:
        of_profile[short_kernel_name(kernel.name, 120)] += kernel.launches
    names = sorted(name for name in of_torch | of_profile if of_torch[name] != of_profile[name])
    calls = [(total.api, total.calls, total.failed) for total in profile.totals if "Launch" in total.api]
    lines = [f"{of_torch[name]:6} {of_profile[name]:6}  {name}" for name in names]
    return "\n".join([f"calls {calls}, records dropped {profile.dropped}", " torch profile", *lines])


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
    """GPU time is at least the kernels, at most all from the first to the last, as docs/profiling.md says."""
    seen, profile = launch_bound
    least_us, most_us = seen["kernels_us"], seen["from_first_to_last_us"]
    assert least_us * (1 - EXACT) <= gpu_us(profile) <= most_us * (1 + EXACT), longest_batches(profile)


def longest_batches(profile: FileProfile) -> str:
    """The batches that took longest, and what the program called meanwhile that took a tenth of that or more."""
    calls = list(profile.calls())
    lines = []
    for span in sorted(profile.spans(), key=lambda span: -span.duration_ns)[:12]:
        end_ns = span.start_ns + span.duration_ns
        lines.append(
            f"at {(span.start_ns - profile.started_ns) / 1e6:.3f} ms, {span.duration_ns / 1e6:.3f} ms long, "
            f"{span.launches} launches, stream {span.stream:x}"
        )
        lines += [
            f"  {call.api} at {(call.start_ns - profile.started_ns) / 1e6:.3f} ms, {call.duration_ns / 1e6:.3f} ms long"
            for call in calls
            if call.start_ns < end_ns
            and call.start_ns + call.duration_ns > span.start_ns
            and call.duration_ns * 10 >= span.duration_ns
        ]
    waits = [(total.api, total.calls) for total in profile.totals if "Synchronize" in total.api]
    lasted_ms = (profile.last_ns - profile.started_ns) / 1e6
    return "\n".join([f"the process took {lasted_ms:.3f} ms; waits {waits}", *lines])
