"""Processes as the guard tells them apart, by the kernel's own files.

Whether one is still the same, which PID namespaces it is in, and whether the library counts it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vgpurun import abi
from vgpurun.guard.snapshot import Program
from vgpurun.host.mounted import path_of
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.slices.members import usages_of
from vgpurun.util.process_identity import pid_inside, pid_namespace, read_stat

_MOST_ENVIRONMENT_BYTES = 1 << 20
_NS_GET_PARENT = 0xB702
_MOST_NAMESPACES = 32  # the kernel's own bound


def is_still(program: Program) -> bool:
    """Whether its number is not another process's by now."""
    with suppress(OSError, ValueError):
        return read_stat(program.pid).started_ticks == program.started_ticks
    return False


def is_ending(pid: int) -> bool:
    """Whether all threads of a process are about to end; the first one alone may end, and the others go on."""
    try:
        if not read_stat(pid).is_exiting:
            return False
        tasks = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    except (OSError, ValueError):
        return True
    for task in tasks:
        with suppress(OSError, ValueError):
            if not read_stat(pid, task).is_exiting:
                return False
    return True


def is_counted_elsewhere(pid: int) -> bool:
    """Whether the library counts a process: one of `vgpurun local`, or of a container that another engine started.

    The latter have the usage file mounted, and the former's environment names it.
    """
    for place in _usage_files(pid):
        with suppress(OSError, ValueError, BrokenUsageError):
            if (namespace_of(pid), pid_inside(pid)) in read_counted(place):
                return True
    return False


def _usage_files(pid: int) -> Iterator[Path]:
    process = Path("/proc", str(pid))
    for place in usages_of(process):
        with suppress(OSError):
            if path := path_of(place):
                yield path
    with suppress(OSError):
        with (process / "environ").open("rb") as file:
            environment = file.read(_MOST_ENVIRONMENT_BYTES)
        name = f"{abi.ENV_USAGE_FILE}=".encode()
        # By no link of /proc, which leads into the file systems of others.
        yield from (
            Path(os.path.realpath(os.fsdecode(each[len(name) :])))
            for each in environment.split(b"\0")
            if each.startswith(name)
        )


def namespace_of(pid: int) -> int:
    """Return the PID namespace of a process. Raises OSError."""
    return pid_namespace(Path(f"/proc/{pid}"))


def namespaces_of(pid: int) -> set[int]:
    """Return the PID namespace of a process, and those that it is in. Raises OSError."""
    found = set()
    file = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_MOST_NAMESPACES):
            found.add(os.fstat(file).st_ino)
            try:
                parent = fcntl.ioctl(file, _NS_GET_PARENT)
            except OSError:  # this process's own has no parent that it may see
                break
            os.close(file)
            file = parent
    finally:
        os.close(file)
    return found
