"""Small files that are read again only after they have changed, for programs that look at many of them for ever."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

_SETTLED_NS = 1_000_000_000  # longer than the clock of a file system stands still: what changes later has another time
_MOST_FILES = 4096  # remembered at the same time

T = TypeVar("T")


class Unchanged(Generic[T]):
    """Reads the file `name` of a folder by `read`, which gets the folder. A file that is not there reads as `missing`.

    Whether it has changed is told by its inode and the time of the last change, which only the kernel sets.
    """

    def __init__(self, name: str, read: Callable[[Path], T], missing: T) -> None:
        self._name = name
        self._read = read
        self._missing = missing
        self._known: dict[str, tuple[tuple[int, ...], T]] = {}

    def __call__(self, folder: Path) -> T:
        """Return what the file says now. Raises what `read` raises."""
        path = f"{folder}/{self._name}"
        try:
            found = os.lstat(path)
        except OSError:
            self._known.pop(path, None)
            return self._missing
        version = (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size)
        known = self._known.get(path)
        if known is not None and known[0] == version:
            return known[1]
        is_settled = time.time_ns() - found.st_ctime_ns > _SETTLED_NS
        content = self._read(folder)
        if is_settled:
            if len(self._known) >= _MOST_FILES:
                self._known.clear()
            self._known[path] = version, content
        return content
