"""What all test tiers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import CHECKOUT, LIBRARY

# Helpers whose assertions should say what they compared; this must come before their import.
pytest.register_assert_rewrite("cli", "terminal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--benchmarks", action="store_true", help="run tests/bench too: it takes time and a quiet machine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    in_bench = collection_path.is_relative_to(CHECKOUT / "tests" / "bench")
    return True if in_bench and not config.getoption("--benchmarks") else None


@pytest.fixture(scope="session")
def built_library() -> Path:
    """lib/build/libvgpu.so, which `make lib` builds."""
    if not LIBRARY.exists():
        pytest.fail("lib/build/libvgpu.so is not there: run `make lib`", pytrace=False)
    return LIBRARY
