"""Text from the kernel, as in /proc: the names in it are others' choice, of any bytes but a newline.

So it need be no UTF-8, and splitlines(), which divides lines at more than a newline, would let a name forge a line.
"""

import os
from pathlib import Path

_PIECE_BYTES = 1 << 14


def read_text(path: Path | str) -> str:
    """Return what the kernel says. Raises OSError.

    Path.read_bytes() takes twice as long, and a daemon reads such files for ever.
    """
    content, file = b"", os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := os.read(file, _PIECE_BYTES):
            content += piece
    finally:
        os.close(file)
    return os.fsdecode(content)


def read_lines(path: Path | str) -> list[str]:
    """Return the same by lines. Raises OSError."""
    return read_text(path).rstrip("\n").split("\n")
