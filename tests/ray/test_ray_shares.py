"""Parts of GPUs' time, measured."""

from __future__ import annotations

import pytest
from ray_node import RayNode


@pytest.mark.real_time
@pytest.mark.slow
def test_tasks_at_once_have_their_parts_of_the_time(node: RayNode) -> None:
    found, _ = node.run("shares.py")
    assert found["trials"][-1] == pytest.approx([0.5, 0.25, 1], abs=0.02)
