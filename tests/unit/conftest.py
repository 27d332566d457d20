"""A history of the metrics, in a folder that is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from histories import DAY_S

from vgpurun.metrics.store import Store


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "lab" / "history.sqlite"


@pytest.fixture
def open_store(history: Path) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def open_it(keep_s: int = 400 * DAY_S, max_bytes: int = 1 << 28) -> Store:
        opened.append(Store(history, keep_s, max_bytes))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()
