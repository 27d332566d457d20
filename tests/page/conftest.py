"""One browser for all tests of this tier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, chromium, missing

from support import is_set, unavailable


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if lacking := missing():
        unavailable(lacking, required=is_set("CI"))
    with chromium() as started:
        yield started
