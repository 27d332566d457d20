"""The node that a test of this folder starts its driver on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_node import RayNode, ray_node


@pytest.fixture
def node(built_library: Path) -> Iterator[RayNode]:
    with ray_node() as made:
        yield made
