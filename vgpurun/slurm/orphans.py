"""Ends what has outlived its job. Slurm loses sight of a task whose slurmstepd was killed.

The kernel says what is the job's: what is in its cgroup; what has its share's files mounted, as its tasks and
containers have; and of its user's processes those that have its limits mapped, as the library has. A file that is open
says nothing, since a descriptor can be passed to anybody.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import CgroupError
from vgpurun.host import freezer
from vgpurun.host.mapped import as_mapped, mapped_files
from vgpurun.host.mounted import place_of
from vgpurun.slices.members import usages_of
from vgpurun.slices.store import Slice
from vgpurun.util.process_identity import ProcessIdentity, all_pids, identify, uid_of

_PATIENCE_S = 5.0
_RETRY_S = 0.05
# By task/cgroup on cgroup v1, and on v2.
_JOB_CGROUP = re.compile(r"/(?:slurm[^/]*/uid_[0-9]+|(?:[^/]*_)?slurmstepd\.scope)/job_([0-9]+)(?=/|$)")


def kill(found: Slice, job: str) -> list[int]:
    """Kill what runs of a job, whose slice this is; wait until it has ended, and return it. Raises nothing."""
    killed: dict[int, None] = {}
    give_up_at = time.monotonic() + _PATIENCE_S
    while (there := list(_processes_of(found, job))) and time.monotonic() < give_up_at:
        for process in there:
            killed[process.pid] = None
            with suppress(OSError, CgroupError):
                process.signal(signal.SIGKILL)
                _thaw(process.pid)
        time.sleep(_RETRY_S)
    return list(killed)


def _thaw(pid: int) -> None:
    """Let a killed process of a paused container end: on cgroup v1 it would wait. Raises CgroupError and OSError."""
    for container in freezer.container_ids(freezer.paths_of(pid)):
        cgroup = freezer.find(pid, container)
        if cgroup and cgroup.is_frozen():
            cgroup.thaw()


def _processes_of(found: Slice, job: str) -> Iterator[ProcessIdentity]:
    user, limits, usage = _owner_of(found.usage), as_mapped(found.folder / "etc" / "limits"), place_of(found.usage)
    for pid in all_pids():
        process = identify(pid)  # before it is looked at: what takes its number later is another one
        if process is None or pid == os.getpid():
            continue
        path = Path(f"/proc/{pid}")
        with suppress(OSError, ValueError):
            if (
                job in _jobs_of(pid)
                or (usage and usage in usages_of(path))
                or (uid_of(pid) == user and limits in mapped_files(path))
            ):
                yield process


def _jobs_of(pid: int) -> set[str]:
    """Return the jobs in whose cgroups a process is. Raises OSError."""
    return {job for path in freezer.paths_of(pid).values() for job in _JOB_CGROUP.findall(path)}


def _owner_of(file: Path) -> int | None:
    with suppress(OSError):
        return file.lstat().st_uid
    return None
