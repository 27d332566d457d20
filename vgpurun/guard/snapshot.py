"""Processes and containers on the GPUs, as the guard's duties see them: plain data, and costly questions."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from vgpurun.host.freezer import Cgroup
from vgpurun.host.gpus import Gpu
from vgpurun.limits.quota import Quota

Found = TypeVar("Found")
_TICKS = os.sysconf("SC_CLK_TCK")  # in a second


class Program(NamedTuple):
    """A process that holds memory of a GPU.

    `container` is the id of vgpurun's container that it is in for certain, empty for one that is for certain in none,
    and None where that cannot be told. `foreign` is the id of another container that it is in, or of one of vgpurun's
    whose cgroup it has left.
    """

    pid: int
    started_ticks: int
    container: str | None
    user: str = ""
    command: str = ""
    foreign: str = ""


class Contained(NamedTuple):
    """A container that vgpurun made, and its quotas now. `folder` has its limits and usage; so a slice's is shared.

    `slice_name` is the slice that it has joined without limits of its own. `around` has the quotas of the shares that
    it is a part of, with limits of its own, by what each is called: "slice NAME", or "share FOLDER".
    `run` tells one start of it from the next. `is_paused`: by the engine, whose affair it is then. `is_launch`: of
    `vgpurun local`, by which its user names the folder.
    """

    id: str
    name: str
    user: str
    folder: Path
    cgroup: Cgroup
    run: str
    quotas: Mapping[str, Quota]
    slice_name: str = ""
    is_paused: bool = False
    around: Mapping[str, Mapping[str, Quota]] = {}
    is_launch: bool = False


class Snapshot(NamedTuple):
    """The findings of one look. A GPU that NVML tells nothing of is not in `held`, which has bytes by UUID and PID.

    `counted_by` returns the PIDs that the library counts in a container, or None where its usage cannot be read, and
    `utilization` how much of a GPU's time each process has used of late, in percent. `is_ending` says whether a
    process is about to end, which may hold memory for some time yet, `is_counted_elsewhere` whether the library counts
    one that is in no container of vgpurun's. `pids` is as by_container() returns it. Before the engine has answered,
    as where none runs, none of `containers` is listed but launches: of others nothing follows from their absence.
    """

    now_s: float
    gpus: Sequence[Gpu]
    held: Mapping[str, Mapping[int, int]]
    programs: Mapping[int, Program]
    containers: Mapping[str, Contained]
    counted_by: Callable[[Contained], frozenset[int] | None]
    utilization: Callable[[Gpu], Mapping[int, float]]
    is_ending: Callable[[int], bool]
    is_counted_elsewhere: Callable[[int], bool]
    pids: Mapping[tuple[str, str], Sequence[int]]
    boot_s: float  # CLOCK_BOOTTIME at the look
    unseen: dict[tuple[str, str], list[int]]  # as unseen_of() has returned them, by container and GPU
    are_listed: bool = True

    def age_s(self, pid: int) -> float:
        """Return for how long a process has been there."""
        return self.boot_s - self.programs[pid].started_ticks / _TICKS

    def younger_than(self, age_s: float) -> list[int]:
        """Return the processes that have been there for less than that."""
        least_ticks = (self.boot_s - age_s) * _TICKS
        return [pid for pid, each in self.programs.items() if each.started_ticks > least_ticks]

    @property
    def silent(self) -> set[str]:
        """The GPUs that NVML tells nothing of, by UUID: what was on them may be there still."""
        return {gpu.uuid for gpu in self.gpus} - self.held.keys()

    def pids_of(self, container: str, uuid: str) -> Sequence[int]:
        """Return the processes of a container that hold memory of a GPU."""
        return self.pids.get((container, uuid), ())

    def unseen_of(self, container: Contained, uuid: str) -> list[int]:
        """Return those of them that the library does not see; none where its usage cannot be read.

        The kernel is asked once at a look, since several duties want to know.
        """
        key = container.id, uuid
        if key not in self.unseen:
            pids = self.pids_of(*key)
            counted = self.counted_by(container) if pids else frozenset()
            uncounted = [] if counted is None else [pid for pid in pids if pid not in counted]
            self.unseen[key] = [pid for pid in uncounted if not self.is_ending(pid)]
        return self.unseen[key]


class Derived(Generic[Found]):
    """Works out anew only from other GPUs and containers, which are mostly those of the snapshot before."""

    def __init__(self, derive: Callable[[Snapshot], Found]) -> None:
        self._derive = derive
        self._known: tuple[list[object], Found] | None = None

    def __call__(self, snapshot: Snapshot) -> Found:
        """Return the result for a snapshot."""
        those: list[object] = [*snapshot.gpus, *snapshot.containers.values()]
        if self._known is None or self._known[0] != those:
            self._known = those, self._derive(snapshot)
        return self._known[1]


def by_container(
    held: Mapping[str, Mapping[int, int]], programs: Mapping[int, Program]
) -> dict[tuple[str, str], list[int]]:
    """Return the processes by their container and their GPU's UUID."""
    found: dict[tuple[str, str], list[int]] = {}
    for uuid, by_pid in held.items():
        for pid in by_pid:
            if container := programs[pid].container:
                found.setdefault((container, uuid), []).append(pid)
    return found
