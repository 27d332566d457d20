"""A program that sees more memory than its share of the device: it works, and the device's share holds."""

from __future__ import annotations

import pytest
from runners import Runner, answer

ALLOCATORS = ["", "expandable_segments:True", "backend:cudaMallocAsync"]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_model_of_6_gib_in_a_share_of_2(runner: Runner, allocator: str) -> None:
    found = answer(
        runner.run(
            ["--mem", "2g", "--oversubscribe", "8g"],
            runner.program("torch_oversubscribed.py"),
            {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {},
        )
    )
    assert found["total_mib"] == 8192 and found["model_mib"] == 6144
    assert found["largest_error"] < 1e-3 and found["updated"]
    assert found["driver_holds_at_most_mib"] <= 2048
    assert found["refusal"] == "OutOfMemoryError"
    assert found["free_afterwards_mib"] > 6144
