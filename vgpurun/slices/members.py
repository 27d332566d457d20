"""Finds the members of a slice: the containers of any engine that have its usage file mounted.

The kernel is asked, by /proc: so a container that Podman or a kubelet started by a CDI device is seen as well. Only
root sees the processes of all; for others, containers of other users are not there.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun import abi
from vgpurun.slices.store import Slice

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_NAMESPACE = re.compile(r"pid:\[([0-9]+)\]")


class Member(NamedTuple):
    """A container of a slice: its id as its cgroup has it, empty where that has none, and one of its processes.

    `pid_namespace` is None for one without a PID namespace of its own: what it uses cannot be told from what others do.
    """

    container: str
    pid: int
    pid_namespace: int | None


def members(found: Sequence[Slice], proc: Path = Path("/proc")) -> dict[str, list[Member]]:
    """Return the members of slices, by the slices' ids. Raises nothing."""
    by_file: dict[tuple[int, int], str] = {}
    for each in found:
        with suppress(OSError):
            status = each.usage.stat()
            by_file[status.st_dev, status.st_ino] = each.id
    joined: dict[str, list[Member]] = {each.id: [] for each in found}
    if by_file:
        for process in _one_of_each_mount_namespace(proc):
            with suppress(OSError):
                status = (process / "root" / abi.CONTAINER_USAGE.lstrip("/")).stat()
                if slice_id := by_file.get((status.st_dev, status.st_ino)):
                    joined[slice_id].append(_member(process, proc))
    return joined


def _one_of_each_mount_namespace(proc: Path) -> Iterator[Path]:
    seen = set()
    with suppress(OSError):
        seen.add((proc / "self" / "ns" / "mnt").readlink())
    for process in sorted((each for each in proc.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)):
        with suppress(OSError):
            namespace = (process / "ns" / "mnt").readlink()
            if namespace not in seen:
                seen.add(namespace)
                yield process


def _member(process: Path, proc: Path) -> Member:
    ids = _CONTAINER_ID.findall((process / "cgroup").read_text())
    own = _pid_namespace(process)
    return Member(ids[-1] if ids else "", int(process.name), None if own == _pid_namespace(proc / "self") else own)


def _pid_namespace(process: Path) -> int | None:
    match = _NAMESPACE.fullmatch(str((process / "ns" / "pid").readlink()))
    return int(match.group(1)) if match else None
