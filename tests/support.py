"""For every test tier: where the checkout is, and how something that is missing is reported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
LIBRARY = CHECKOUT / "lib" / "build" / "libvgpu.so"


def unavailable(reason: str, *, required: bool = False) -> NoReturn:
    """Skip the test with ``reason``; fail it instead where what is missing was declared to be ``required``."""
    if required:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def is_set(variable: str) -> bool:
    """Whether a switch such as REQUIRE_ENGINE is set in the environment, to anything but nothing and 0."""
    return os.environ.get(variable, "0") not in ("", "0")
