"""Which files of this host a process has mounted, by the kernel's list of its mounts.

Nothing is looked up in the process's own file system: root in a container may put a link to a file of the host there, a
pipe, or a file system that never answers.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vgpurun.util.kernel_text import read_lines
from vgpurun.util.nofollow import open_nofollow

_SELF = Path("/proc/self")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Place(NamedTuple):
    """A file or folder, by the kernel's number of its file system, as in 8:1, and the path in there."""

    device: str
    path: str


@dataclass(frozen=True)
class Mount:
    """A mount: what is mounted, and where, as the process sees it."""

    place: Place
    point: str


def mounts_of(process: Path) -> Iterator[Mount]:
    """Yield the mounts that a process of /proc sees, each after those that it covers. Raises OSError."""
    yield from map(_mount, filter(None, read_lines(process / "mountinfo")))


def place_of(path: Path) -> Place | None:
    """Return where a file of this process's lies, or None where it cannot be told. Raises nothing."""
    with suppress(OSError, StopIteration):
        file = open_nofollow(path, os.O_PATH)
        try:
            real = os.readlink(f"/proc/self/fd/{file}")  # noqa: PTH115
            lines = read_lines(_SELF / "fdinfo" / str(file))
        finally:
            os.close(file)
        number = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        mount = _mount(next(each for each in read_lines(_SELF / "mountinfo") if each.startswith(f"{number} ")))
        return Place(mount.place.device, _moved(real, mount.point, mount.place.path))
    return None


def path_of(place: Place) -> Path | None:
    """Return the path by which this process has a file that another has mounted, or None. Raises OSError."""
    for mount in mounts_of(_SELF):
        device, root = mount.place
        if device == place.device and os.path.commonpath([root, place.path]) == root:
            path = Path(_moved(place.path, root, mount.point))
            if place_of(path) == place:
                return path
    return None


def _mount(line: str) -> Mount:
    _, _, device, path, point, *_ = line.split(" ")
    return Mount(Place(device, _plain(path)), _plain(point))


def _moved(path: str, root: str, onto: str) -> str:
    """Return a path below one folder as that below another."""
    return os.path.normpath(Path(onto, os.path.relpath(path, root)))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), text)
