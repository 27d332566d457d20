"""Containers that go on together: each runs `gpu.py member /steps` and tells in a folder what it got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import wait_until


def told(folder: Path, name: str, count: int) -> list[dict[str, Any]]:
    """Return what `count` containers have told of a step, as soon as all of them have."""
    # A container's file ends with the name of its host, which is the first 12 characters of its id.
    paths = wait_until(lambda: len(found := list(folder.glob(f"{name}.????????????"))) == count and found, name)
    return [json.loads(path.read_text()) for path in paths]
