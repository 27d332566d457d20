"""All tests of this tier share a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started
