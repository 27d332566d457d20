"""The node that the tests of this folder run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api_server import ApiServer
from node_of_test import NodeOfTest, node_of_test


@pytest.fixture
def node(built_library: Path) -> Iterator[NodeOfTest]:
    with node_of_test(built_library) as made:
        yield made


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        yield running
