"""The report of a real training: what it says is what the program did, within its limits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from runners import Local, answer, vgpurun

from support import CHECKOUT

LIMIT_BYTES = 8 << 30
SM_PERCENT = 50
SLACK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def profile(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, float]]]:
    """A training's profile, and what it says that it did. REPORT_DIR keeps it."""
    kept = os.environ.get("REPORT_DIR")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("profile")
    program = [python, str(CHECKOUT / "examples" / "profile_training.py"), "--steps", "60"]
    limits = ["--mem", str(LIMIT_BYTES), "--sm", str(SM_PERCENT), "--profile", str(folder)]
    return folder, answer(Local(python).run(limits, program))


def test_the_report_says_what_the_training_did(profile: tuple[Path, dict[str, dict[str, float]]]) -> None:
    folder, done = profile
    result = vgpurun(["report", "--format", "json", str(folder)])
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    device = found["devices"][0]
    assert device["memory_limit_bytes"] == LIMIT_BYTES and device["sm_limit_percent"] == SM_PERCENT
    parameters = sum(each["parameter_bytes"] for each in done.values())
    assert parameters < device["memory_peak_bytes"] <= LIMIT_BYTES
    assert 0 < device["sm_used_percent"] <= SM_PERCENT + 3
    assert device["gpu_ns"] < found["duration_ns"] * (SM_PERCENT + 3) / 100
    to_device = next(copy for copy in found["copies"] if copy["kind"] == "host_to_device")
    sent = sum(each["batch_bytes"] for each in done.values()) + parameters
    assert sent <= to_device["size_bytes"] < sent + SLACK_BYTES
    assert found["kernels"][0]["gpu_ns"] > 0 and sum(kernel["launches"] for kernel in found["kernels"]) > 10_000
    assert found["waits"]["count"] > 0
    assert all(process["ended_ns"] for process in found["processes"])


def test_its_page_and_trace_are_whole(profile: tuple[Path, dict[str, dict[str, float]]]) -> None:
    folder, _ = profile
    for output_format in ("html", "trace", "png"):
        result = vgpurun(["report", "--format", output_format, str(folder)])
        assert result.returncode == 0, result.stderr
        print(result.stdout)
    assert (folder / "report.html").stat().st_size < 300_000
    pictures = {path.stem for path in (folder / "pictures").iterdir()}
    assert pictures >= {"memory-gpu0", "share-gpu0", "timeline", "kernels"}
