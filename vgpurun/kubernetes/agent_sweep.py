"""Removes what pods that are gone have left. A claim's folder is the DRA plugin's own to give back (dra_driver.py)."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from vgpurun.kubernetes.agent_pods import PodContainer
from vgpurun.kubernetes.agent_tenants import units_of
from vgpurun.kubernetes.state import all_folders, state_root
from vgpurun.limits import region

_HALF_GONE = ".gone-"


def sweep(root: Path, containers: Sequence[PodContainer], min_age_s: float) -> list[Path]:
    """Remove the folders of containers whose units kubelet has given to nobody now, and return them.

    A folder stays while a process counts in its usage file, and for a time after it was made: kubelet asks for it
    before it says whose it is.
    """
    for half_gone in state_root(root).glob(f"{_HALF_GONE}*"):  # of an agent that was killed
        shutil.rmtree(half_gone, ignore_errors=True)
    used = {unit for each in containers for unit in each.units}
    removed = []
    for folder, owner in all_folders(root):
        if units_of(owner) & used or _age_s(folder) < min_age_s:
            continue
        if not region.has_live_processes(folder / "run" / "usage"):
            _remove(folder)
            removed.append(folder)
    return removed


def _age_s(folder: Path) -> float:
    """How long ago anything in a folder was made or written; 0 for one that is gone."""
    try:
        return time.time() - max(each.stat().st_mtime for each in (folder, folder / "etc"))
    except OSError:
        return 0.0


def _remove(folder: Path) -> None:
    """In one step for everybody else: a folder that is half gone would be taken for a container's."""
    half_gone = folder.with_name(f"{_HALF_GONE}{os.urandom(6).hex()}")
    try:
        folder.rename(half_gone)
    except OSError:
        return
    shutil.rmtree(half_gone, ignore_errors=True)
