"""Removes what pods that are gone have left. A claim's folder is the DRA plugin's own to give back (dra_driver.py)."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.kubernetes.checkpoint import Holding
from vgpurun.kubernetes.pods import PodContainer
from vgpurun.kubernetes.state import all_folders, alone, state_root, units_of
from vgpurun.storage import tenants
from vgpurun.storage.shared_file import has_live_processes

_HALF_GONE = ".gone-"


class _Identity(NamedTuple):
    """A folder's identity, until it is made anew or anything in it is written."""

    path: Path
    inode: int
    written_ns: int


class Sweeper:
    """Removes the folders of containers whose units nobody has, once they were like that in `looks` looks on end.

    Kubelet asks for a folder before it says whose it is, and what it says may be of before that. Looks are counted, and
    no time is measured: the host's clock may be set at any moment.
    """

    def __init__(self, root: Path, looks: int) -> None:
        self._root = root
        self._looks = looks
        self._unused: dict[_Identity, int] = {}

    def look(self, containers: Sequence[PodContainer], holdings: Sequence[Holding]) -> list[Path]:
        """Look once, and return what was removed.

        `containers` are kubelet's word, which leaves init containers out; `holdings` are its record, which has them,
        and also pods that are gone until another pod gets units. A folder stays while a process counts in its usage
        file. Raises StateError.
        """
        for half_gone in state_root(self._root).glob(f"{_HALF_GONE}*"):  # left by a killed agent
            shutil.rmtree(half_gone, ignore_errors=True)
        used = {unit for each in containers for unit in each.units}
        used |= {(name, unit) for each in holdings for name, units in each.units.items() for unit in units}
        unused = {}
        for folder, owner in all_folders(self._root):
            identity = _identity(folder)
            if identity and not units_of(owner) & used and not has_live_processes(folder / "run" / "usage"):
                unused[identity] = self._unused.get(identity, 0) + 1
        self._unused = unused
        return [each.path for each, looks in unused.items() if looks >= self._looks and self._remove(each)]

    def _remove(self, seen: _Identity) -> bool:
        """In one step for everybody else: a folder that is half gone would be taken for a container's."""
        half_gone = seen.path.with_name(f"{_HALF_GONE}{os.urandom(6).hex()}")
        with alone(self._root):
            if _identity(seen.path) != seen:  # the plugin has given it to another container since
                return False
            try:
                seen.path.rename(half_gone)
            except OSError:
                return False
            tenants.remove(seen.path)
        shutil.rmtree(half_gone, ignore_errors=True)
        return True


def _identity(folder: Path) -> _Identity | None:
    """Return a folder's identity now; None for one that is gone."""
    with suppress(OSError):
        status = folder.stat()
        return _Identity(folder, status.st_ino, max(status.st_mtime_ns, (folder / "etc").stat().st_mtime_ns))
    return None
