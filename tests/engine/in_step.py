"""Containers that go on together: each runs `gpu.py member /steps` and tells in a folder what it got."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import wait_until


def told(folder: Path, name: str, count: int) -> list[dict[str, Any]]:
    """Return what `count` containers have told of a step, as soon as all of them have."""
    return [json.loads(path.read_text()) for path in _paths(folder, name, count)]


def rates(folder: Path, containers: Sequence[Any]) -> list[float]:
    """How many kernels a second each container launches, of the same length and at the same time."""
    _paths(folder, "started", len(containers))
    for step in ("fill", "free", "spin"):
        (folder / step).touch()
    spun = {path.suffix[1:]: json.loads(path.read_text()) for path in _paths(folder, "spun", len(containers))}
    (folder / "end").touch()
    return [spun[each.id[:12]]["launches"] / spun[each.id[:12]]["seconds"] for each in containers]


def _paths(folder: Path, name: str, count: int) -> list[Path]:
    # A container's file ends with the name of its host, which is the first 12 characters of its id.
    return wait_until(lambda: len(found := list(folder.glob(f"{name}.????????????"))) == count and found, name, 60)
