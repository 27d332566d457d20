"""The limiter's account, gate and tenants stay small, and docs/dev/compute.md has each of their tuned constants."""

from __future__ import annotations

import re

from support import CHECKOUT

SOURCES = CHECKOUT / "lib" / "src"
FILES = sorted(path for folder in ("compute", "tenants") for path in (SOURCES / folder).iterdir())
TUNED = re.compile(r"^#define (\w+_NS) ", re.MULTILINE)


def tuned() -> set[str]:
    return {name for path in (*FILES, SOURCES / "base" / "bucket.h") for name in TUNED.findall(path.read_text())}


def test_its_lines_and_its_tuned_constants_are_few() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FILES) <= 1200
    assert len(tuned()) <= 12


def test_each_tuned_constant_is_in_the_table_and_each_of_the_table_in_the_code() -> None:
    rows = re.findall(r"^\| (`[A-Z][^|]*) \|", (CHECKOUT / "docs/dev/compute.md").read_text(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    code = "".join(path.read_text() for path in (*FILES, *(SOURCES / "scheduler").iterdir()))
    code += (SOURCES / "base" / "bucket.h").read_text()
    assert tuned() <= listed
    assert listed == {name for name in listed if f"#define {name} " in code}
