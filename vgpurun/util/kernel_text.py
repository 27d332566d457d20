"""Text from the kernel, as in /proc: the names in it are others' choice, of any bytes but a newline.

So it need be no UTF-8, and splitlines(), which divides lines at more than a newline, would let a name forge a line.
"""

import os
from pathlib import Path


def read_text(path: Path) -> str:
    """Return what the kernel says. Raises OSError."""
    return os.fsdecode(path.read_bytes())


def read_lines(path: Path) -> list[str]:
    """Return the same by lines. Raises OSError."""
    return read_text(path).rstrip("\n").split("\n")
