"""Finds the members of a slice: the containers of any engine that have its usage file mounted.

The kernel is asked, by /proc: so a container that Podman or a kubelet started by a CDI device is seen as well. Only
root sees the processes of all; for others, containers of other users are not there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun.host.freezer import CONTAINER_ID
from vgpurun.host.mounted import Place, mounts_of, place_of
from vgpurun.slices.store import Slice
from vgpurun.util.kernel_text import read_text
from vgpurun.util.process_identity import pid_namespace

_USAGE = "/run/usage"


@dataclass(frozen=True)
class Member:
    """A container of a slice: its id as its cgroup has it, empty where that has none, and one of its processes.

    `pid_namespace` is None for one without a PID namespace of its own: what it uses cannot be told from what others do.
    """

    container: str
    pid: int
    pid_namespace: int | None


def members(found: Sequence[Slice], proc: Path = Path("/proc")) -> dict[str, list[Member]]:
    """Return the members of slices, by the slices' ids. Raises nothing."""
    by_file = _by_file(found)
    joined: dict[str, list[Member]] = {each.id: [] for each in found}
    if by_file:
        for process in _one_of_each_mount_namespace(proc):
            with suppress(OSError):
                if slice_id := _slice_of(process, by_file):
                    joined[slice_id].append(_member(process, proc))
    return joined


def _by_file(found: Sequence[Slice]) -> dict[Place, str]:
    return {file: each.id for each in found if (file := usage_place(each.folder))}


def usage_place(folder: Path) -> Place | None:
    """Return where the usage file of a state folder lies, which users who may not open that can tell, too."""
    place = place_of(folder)
    return None if place is None else Place(place.device, f"{place.path.rstrip('/')}{_USAGE}")


def _slice_of(process: Path, by_file: Mapping[Place, str]) -> str | None:
    return next((by_file[usage] for usage in usages_of(process) if usage in by_file), None)


def usages_of(process: Path) -> list[Place]:
    """Return which usage files a process of /proc has mounted. Raises nothing.

    The first is that of its own share, the next ones are those of the shares that it is a part of. Where they are is
    not asked: root in a container may rename the folder around them.
    """
    with suppress(OSError):
        return [each.place for each in mounts_of(process) if each.place.path.endswith(_USAGE)]
    return []


def _one_of_each_mount_namespace(proc: Path) -> Iterator[Path]:
    seen = set()
    with suppress(OSError):
        seen.add((proc / "self" / "ns" / "mnt").readlink())
    for process in sorted((each for each in proc.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)):
        with suppress(OSError):
            namespace = (process / "ns" / "mnt").readlink()
            if namespace not in seen and not _is_slurmstepd(process):
                seen.add(namespace)
                yield process


def _is_slurmstepd(process: Path) -> bool:
    """Ask whether it is the daemon of a step, which is in its job's slice for the sake of what it starts."""
    return process.stat().st_uid == 0 and read_text(process / "comm").strip() == "slurmstepd"


def _member(process: Path, proc: Path) -> Member:
    ids = CONTAINER_ID.findall(read_text(process / "cgroup"))
    own = pid_namespace(process)
    return Member(ids[-1] if ids else "", int(process.name), None if own == pid_namespace(proc / "self") else own)
