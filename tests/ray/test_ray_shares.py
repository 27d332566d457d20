"""Parts of GPUs' time, measured."""

from __future__ import annotations

import pytest
from ray_node import TIMEOUT_S, UUIDS, RayNode

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)


@pytest.mark.real_time
@pytest.mark.exhaustive  # the next one has it within a share
def test_tasks_at_once_have_their_parts_of_the_time(node: RayNode) -> None:
    found, _ = node.run("shares.py", *["2", "0.5", "0.5", "0.25", "0.25", "1", "1"])
    times, sizes = zip(*found["trials"][-1], strict=True)
    assert times == pytest.approx([0.5, 0.25, 1], abs=0.02)
    assert sizes == (4096, 2048, 8192)


@pytest.mark.real_time
@pytest.mark.exhaustive  # test_ray_jobs.py has the limits that workers hold
def test_within_a_share_tasks_have_parts_of_the_share(node: RayNode) -> None:
    """A process that has half a GPU starts Ray, as in a Slurm job."""
    share = ("--mem", "50%", "--sm", "50", "--gpus", UUIDS[0])
    found, _ = node.run("shares.py", *["1", "0.5", "0.25", "0.5", "0.25"], within=share)
    times, sizes = zip(*found["trials"][-1], strict=True)
    assert times == pytest.approx([0.25, 0.25], abs=0.02)
    assert sizes == (2048, 2048)
