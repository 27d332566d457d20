"""The memory limit, as frameworks meet it."""

from __future__ import annotations

import pytest
from runners import Runner, answer

LIMIT_MIB = 2048
ALLOCATORS = ["", "expandable_segments:True", "backend:cudaMallocAsync"]


def test_nvidia_smi_shows_the_limit(runner: Runner) -> None:
    query = ["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    result = runner.run(["--mem", "2g"], query)
    assert result.stdout.split(", ")[0] == str(LIMIT_MIB), result.stdout + result.stderr


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_pytorch_is_refused_past_the_limit_and_recovers(runner: Runner, allocator: str) -> None:
    result = runner.run(
        ["--mem", "2g"], runner.program("torch_memory.py"), {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}
    )
    found = answer(result)
    assert found["total_mib"] == found["properties_total_mib"] == LIMIT_MIB
    assert found["refusal"] == "OutOfMemoryError"
    # A context of about half a GiB is inside the limit; what is granted leaves no room for another chunk of 32 MiB,
    # nor for the 32 MiB by which a pool grows.
    assert 1200 <= found["granted_mib"] < LIMIT_MIB
    assert found["free_at_refusal_mib"] < 64
    assert found["driver_holds_mib"] <= LIMIT_MIB
    assert found["granted_again_mib"] >= found["granted_mib"] - 64
    assert found["works_afterwards"]


def test_cupy(runner: Runner) -> None:
    found = answer(runner.run(["--mem", "4g"], runner.program("cupy_memory.py")))
    assert found["total_mib"] == 4096 and 3000 <= found["granted_mib"] < 4096
    assert found["refusal"] == "OutOfMemoryError" and found["works_afterwards"]


def test_jax(runner: Runner) -> None:
    found = answer(runner.run(["--mem", "4g"], runner.program("jax_memory.py")))
    assert 2000 <= found["pool_mib"] <= 3584  # three quarters of what it is shown
    assert found["granted_mib"] <= found["pool_mib"]
    assert "RESOURCE_EXHAUSTED" in found["refusal"] and found["works_afterwards"]
