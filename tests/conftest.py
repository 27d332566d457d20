"""What all test tiers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import LIBRARY

# Helpers whose assertions should say what they compared; this must come before their import.
pytest.register_assert_rewrite("cli", "terminal")


@pytest.fixture(scope="session")
def built_library() -> Path:
    """lib/build/libvgpu.so, which `make lib` builds."""
    if not LIBRARY.exists():
        pytest.fail("lib/build/libvgpu.so is not there: run `make lib`", pytrace=False)
    return LIBRARY
