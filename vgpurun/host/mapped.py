"""Which files a process has mapped, by the kernel's list of its memory."""

import os
from dataclasses import dataclass
from pathlib import Path

from vgpurun.util.kernel_text import read_lines
from vgpurun.util.nofollow import open_nofollow


@dataclass(frozen=True)
class MappedFile:
    """A file as that list names it: the device of its file system, and its inode."""

    device: str
    inode: str


def mapped_files(process: Path) -> set[MappedFile]:
    """Return what a process of /proc has mapped. Raises OSError."""
    lines = (line.split(maxsplit=5) for line in read_lines(process / "maps"))
    return {MappedFile(*words[3:5]) for words in lines if len(words) > 5}


def as_mapped(file: Path) -> MappedFile | None:
    """Return how that list names a file, None for one that is not there, or behind a link. Raises PermissionError."""
    try:
        opened = open_nofollow(file, os.O_PATH)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        status = os.fstat(opened)
    finally:
        os.close(opened)
    return MappedFile(f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", str(status.st_ino))
