"""Looks at the GPUs for the guard: NVML says what each process holds, /proc whose it is, the engine which containers
there are. Anything that seldom changes is read seldom, since this goes on twice a second for ever.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vgpurun.errors import ContainerError, EngineError, GpuError
from vgpurun.guard.processes import (
    is_counted_elsewhere,
    is_ending,
    is_still,
    namespace_of,
    namespaces_of,
    pid_inside,
)  # fmt: skip
from vgpurun.guard.snapshot import Contained, Program, Snapshot, by_container
from vgpurun.host import freezer, gpus
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.host.gpus import Gpu
from vgpurun.host.process_watch import ProcessWatch
from vgpurun.inventory.guarded import Stopped
from vgpurun.inventory.reservations import limits_now, quotas_now
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.storage.state import SLICES
from vgpurun.util.background import Background
from vgpurun.util.kernel_text import read_text
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import read_stat
from vgpurun.util.users import name_of

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer
    from vgpurun.engine.containers import ContainerEngine

ENGINE_PATIENCE_S = 5
_ENGINE_TAKES_S = 0.2  # mostly; a look waits no longer for its answer
_FILE_TAKES_S = 0.5  # at most, to read a usage file: it may be on a server that does not answer
_GPUS_EVERY_S, _ENGINE_EVERY_S, _ENGINE_AT_MOST_EVERY_S = 30.0, 60.0, 1.0
_UTILIZATION_S, _UTILIZATION_EVERY_S = 1.0, 0.05


class _Known(NamedTuple):
    """A container as it was found, and what tells that it is another now."""

    listed: "VgpurunContainer"
    limits: frozenset[int]  # the watches of the folders that have its limits, and those around it
    contained: Contained


class GuardReader:
    """Looks again and again. `say` hears once of each trouble, and once of its end."""

    def __init__(
        self, stopped: Mapping[str, Stopped], note: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        self._stopped = stopped
        self._note = note
        self._clock = clock
        self._nvml = ExitStack()
        self._is_open = False
        self._gpus: list[Gpu] = []
        self._engine: ContainerEngine | None = None
        self._listed: dict[str, VgpurunContainer] = {}
        self._has_listed = False  # ever: without a list nobody is known to be outside
        self._read_s: dict[str, float] = {}
        self._programs: dict[int, Program] = {}
        self._paths: dict[int, dict[str, str]] = {}  # their cgroups, by controller, when each was read
        self._watch = ProcessWatch()
        self._cgroups: dict[str, tuple[Cgroup, str, Program | None]] = {}  # and whose it is: while that lives it stays
        self._asking: Background[tuple[dict[str, VgpurunContainer], dict[str, int]]] | None = None
        self._asked_of: frozenset[Program] = frozenset()  # those that were there when the engine was asked
        self._asking_of: dict[int, Background[bool]] = {}  # whether the library counts a process
        self._first_pids: dict[str, int] = {}
        self._own_namespaces = namespaces_of(os.getpid())
        self._namespaces: dict[str, tuple[str, int]] = {}
        self._counted: dict[str, frozenset[int]] = {}
        self._known: dict[str, _Known] = {}
        self._limits = FolderWatch()
        self._found: tuple[object, dict[str, Contained]] | None = None  # containers, and what they follow from
        self._utilization: dict[str, tuple[float, Mapping[int, float]]] = {}
        self._unknown: set[str] = set()  # ids of containers that came since the engine was asked; "": one of any id

    def look(self) -> Snapshot | None:
        """Return what there is now, or None where nothing is known.

        That is where NVML does not answer, and before the engine first has: nobody's container could be named, and
        what is remembered of them would be taken for over.
        """
        now_s = self._clock()
        self._counted.clear()
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        held = self._read_held(now_s)
        if held is None:
            return None
        pids = {pid for by_pid in held.values() for pid in by_pid}
        self._watch.keep(pids)
        watched = self._watch.pids
        self._asking_of = {pid: each for pid, each in self._asking_of.items() if pid in pids}
        self._programs = {
            pid: each for pid, each in self._programs.items() if pid in watched or (pid in pids and is_still(each))
        }
        self._paths = {pid: each for pid, each in self._paths.items() if pid in self._programs}
        for pid in pids - self._programs.keys():
            self._watch.add(pid)
            self._programs[pid] = self._read_program(pid)
        self._list_containers(now_s)
        if not self._has_listed:
            return None
        # A process that is gone by now holds nothing that anybody could take from it.
        held = {uuid: {pid: size for pid, size in by_pid.items() if self._programs[pid].started_ticks}
                for uuid, by_pid in held.items()}  # fmt: skip
        return Snapshot(
            now_s, self._gpus, held, self._programs, self._contained(), self._counted_by, self._read_utilization,
            is_ending, self._is_counted_elsewhere, by_container(held, self._programs), boot_s,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of all that it has open."""
        self._close_nvml()
        self._watch.close()
        self._limits.close()

    def _close_nvml(self) -> None:
        self._nvml.close()
        self._is_open = False

    def _is_due(self, what: str, every_s: float, now_s: float) -> bool:
        if now_s - self._read_s.get(what, -every_s) < every_s:
            return False
        self._read_s[what] = now_s
        return True

    # ---- NVML ------------------------------------------------------------------------------------------------------

    def _read_held(self, now_s: float) -> dict[str, dict[int, int]] | None:
        held: dict[str, dict[int, int]] = {}
        try:
            if not self._is_open:
                self._nvml.enter_context(gpus.held_open())
                self._is_open = True
                self._read_s.pop("gpus", None)
            if self._is_due("gpus", _GPUS_EVERY_S, now_s):
                self._gpus = gpus.usable(gpus.survey().gpus)
            read = gpus.read_all_processes(self._gpus)
        except GpuError as error:
            self._close_nvml()  # a new driver may come
            self._note("nvml", f"the guard sees nothing: {error}")
            return None
        trouble = ""
        for gpu in self._gpus:
            found = read[gpu.uuid]
            if isinstance(found, GpuError):
                trouble = f"the guard does not see GPU {gpu.number}: {found}"
            else:
                held[gpu.uuid] = found
        if trouble and not held:
            self._close_nvml()
        self._note("nvml", trouble)
        return held if held else None

    def _read_utilization(self, gpu: Gpu) -> Mapping[int, float]:
        now_s = self._clock()
        read_s, found = self._utilization.get(gpu.uuid, (-1.0, {}))
        if now_s - read_s >= _UTILIZATION_EVERY_S:
            try:
                found = gpus.read_utilization(gpu, _UTILIZATION_S)
                self._note("utilization", "")
            except GpuError as error:
                self._note("utilization", f"compute is not guarded: {error}")
                found = {}
            self._utilization[gpu.uuid] = (now_s, found)
        return found

    # ---- containers ------------------------------------------------------------------------------------------------

    def _list_containers(self, now_s: float) -> None:
        """Keep the list of containers. It changes little, and what is new shows as an id that is not known."""
        every_s = _ENGINE_EVERY_S if self._has_listed and not self._stopped else _ENGINE_AT_MOST_EVERY_S
        is_due = self._is_due("engine", every_s, now_s)
        is_news = self._unknown and self._is_due("engine again", _ENGINE_AT_MOST_EVERY_S, now_s)
        if self._asking is None and (is_due or is_news):
            known, unknown = frozenset(self._first_pids.keys() - self._unknown), frozenset(self._unknown - {""})
            self._asked_of = frozenset(self._programs.values())
            self._asking = Background(lambda: self._list(known, unknown))
        if self._asking is None or not self._asking.has_ended(_ENGINE_TAKES_S):
            return
        asking, self._asking = self._asking, None
        try:
            listed, first_pids = asking.result()
        except EngineError as error:
            self._engine = None
            self._note("engine", f"new containers are not guarded: {error}")
            return
        self._note("engine", "")
        self._take_list(listed, first_pids)

    def _list(
        self, known: frozenset[str], unknown: frozenset[str]
    ) -> tuple[dict[str, "VgpurunContainer"], dict[str, int]]:
        """Ask the engine, in a thread of its own: it may not answer for a long time. Raises EngineError.

        It lists a container only some time after its first process runs, but describes it from then on.
        """
        from vgpurun.engine.containers import ContainerEngine, from_description

        engine = self._engine = self._engine or ContainerEngine.connect(ENGINE_PATIENCE_S)
        listed = {each.id: each for each in engine.containers(everything=False)}
        first_pids = {}

        def describe(id_: str) -> None:
            with suppress(ContainerError):
                found = engine.describe(id_)
                if first_pid := int(found["State"]["Pid"]):
                    first_pids[id_] = first_pid
                    listed.setdefault(id_, from_description(found))

        for id_ in listed.keys() - known:
            describe(id_)
        with suppress(EngineError):  # the engine describes none while it starts it, which may take long
            for id_ in unknown - listed.keys():
                describe(id_)
        return listed, first_pids

    def _take_list(self, listed: "dict[str, VgpurunContainer]", first_pids: dict[str, int]) -> None:
        # An id is never given twice, so what is not listed any more may stay known until its processes are gone.
        in_use = {each.container for each in self._programs.values()} | self._stopped.keys()
        self._listed = {id_: each for id_, each in self._listed.items() if id_ in in_use} | listed
        self._first_pids = {id_: pid for id_, pid in (self._first_pids | first_pids).items() if id_ in self._listed}
        self._cgroups = {id_: each for id_, each in self._cgroups.items() if id_ in self._listed}
        self._known = {id_: each for id_, each in self._known.items() if id_ in self._listed}
        self._namespaces = {id_: each for id_, each in self._namespaces.items() if id_ in self._listed}
        self._has_listed = True
        self._found = None
        self._unknown = set()
        for pid, each in list(self._programs.items()):
            if not each.container or self._has_moved(pid):
                self._programs[pid] = self._read_program(pid, is_listed=each in self._asked_of)

    def _contained(self) -> dict[str, Contained]:
        """Limits may be changed at any time, of which the kernel tells."""
        if changed := self._limits.changed():
            self._known = {id_: each for id_, each in self._known.items() if each.limits.isdisjoint(changed)}
        if self._found and self._found[0] == (self._programs, self._known):
            return self._found[1]
        in_use = {each.container for each in self._programs.values() if each.container} | self._stopped.keys()
        known = {id_: self._contained_one(self._listed[id_]) for id_ in in_use & self._listed.keys()}
        found = {id_: each for id_, each in known.items() if each}
        is_known = not self._stopped and known.keys() <= self._known.keys()
        self._found = ((self._programs, dict(self._known)), found) if is_known else None
        return found

    def _contained_one(self, listed: "VgpurunContainer") -> Contained | None:
        cgroup = self._cgroup_of(listed.id)
        known = self._known.pop(listed.id, None)
        if cgroup is None:
            return None
        if known is None or (known.listed, known.contained.run) != (listed, cgroup[1]):
            parents = [Path(each) for each in listed.record.parents]
            folders = [listed.limits_folder, *parents]
            limits = frozenset(self._limits.add(each / "etc") for each in folders)  # before they are read
            contained = Contained(
                listed.id, listed.name, listed.user, listed.limits_folder, *cgroup, dict(quotas_now(listed)),
                "" if listed.is_part else listed.slice_name, listed.status == "paused",
                {_called(each): dict(limits_now(each)) for each in parents},
            )  # fmt: skip
            known = _Known(listed, limits, contained)
        if NOT_WATCHED not in known.limits:
            self._known[listed.id] = known
        return known.contained

    def _cgroup_of(self, container: str) -> tuple[Cgroup, str] | None:
        known = self._cgroups.get(container)
        if known is not None:
            cgroup, run, by = known
            if (by and self._programs.get(by.pid) is by) or run_of(cgroup) == run:
                return cgroup, run
        now: Cgroup | None = None
        of_container = [each for each in self._programs.values() if each.container == container]
        by = next((each for each in of_container if (now := freezer.find(each.pid, container))), None)
        if now is None and container in self._stopped:
            now = self._stopped[container].cgroup
        run = run_of(now) if now else ""
        if now is None or not run:
            return None
        self._cgroups[container] = now, run, by
        return now, run

    # ---- processes -------------------------------------------------------------------------------------------------

    def _read_program(self, pid: int, is_listed: bool = False) -> Program:
        """Describe a process. `is_listed`: the engine was asked since it is there, and so its container is known."""
        process = Path("/proc", str(pid))
        try:
            started_ticks = read_stat(pid).started_ticks
            paths = self._paths[pid] = freezer.paths_of(pid)
            ids = freezer.container_ids(paths)
            user, command = name_of(process.stat().st_uid), printable(read_text(process / "comm").rstrip("\n"))
        except (OSError, ValueError):
            return Program(pid, 0, None)  # it has ended
        # Its program may itself name cgroups below its own like those of others.
        ours = {id_: self._is_inside(pid, id_, is_listed) for id_ in ids & self._listed.keys()}
        inside = [id_ for id_, is_inside in ours.items() if is_inside]
        if inside or None in ours.values():
            return Program(pid, started_ticks, inside[0] if len(inside) == 1 else None, user, command)
        ids -= ours.keys()
        inner = self._inner_namespaces(pid)
        is_news = (ids or inner) and not is_listed
        if is_news:
            self._unknown |= ids or {""}
        if is_news or not self._has_listed:
            return Program(pid, started_ticks, None, user, command)
        foreign = next(iter(ids), "") or self._has_left(inner)
        return Program(pid, started_ticks, None if foreign is None else "", user, command, foreign or "")

    def _has_moved(self, pid: int) -> bool:
        """Whether a process is in another cgroup than it was: root in a container that may mount may leave its own."""
        try:
            return freezer.paths_of(pid) != self._paths.get(pid)
        except OSError:
            return False  # it has ended

    def _inner_namespaces(self, pid: int) -> set[int]:
        """Return the PID namespaces of a process that this one does not have; none where that cannot be told."""
        try:
            return namespaces_of(pid) - self._own_namespaces
        except OSError:
            return set()

    def _has_left(self, inner: set[int]) -> str | None:
        """Return the container whose PID namespace a process has, which is in another cgroup: root may move it there.

        On cgroup v1 and by --cgroupns host a container that may mount has the cgroups of the host. None where one
        was started again, so that the engine is asked first.
        """
        is_news = False
        for container, first in list(self._first_pids.items()) if inner else ():
            try:
                if namespace_of(first) in inner:
                    return container
            except OSError:
                self._first_pids.pop(container)
                self._unknown.add(container)
                is_news = True
        return None if is_news else ""

    def _is_inside(self, pid: int, container: str, is_listed: bool) -> bool | None:
        """Whether a process belongs to a container whose cgroup it is in, or None where that cannot be told.

        Anybody who may make cgroups may name one like it. Those of one container are in the cgroup of its first
        process, which the engine knows. Whoever may write there may move others in: so they also have that process's
        PID namespace, or one below it.
        """
        cgroup = freezer.find(pid, container)
        run = run_of(cgroup) if cgroup else ""
        known = self._namespaces.get(container)
        try:
            if known is None or known[0] != run:
                first = self._first_pids.get(container, 0)
                of_first = freezer.find(first, container)
                if of_first is None:
                    self._first_pids.pop(container, None)
                if of_first is None or (of_first != cgroup and not is_listed):
                    self._unknown.add(container)  # it may have been started again: the engine is asked
                    return None
                if of_first != cgroup:
                    return False
                known = self._namespaces[container] = (run, namespace_of(first))
            return known[1] in namespaces_of(pid) or None
        except OSError:
            return None

    def _is_counted_elsewhere(self, pid: int) -> bool:
        """Ask in a thread of its own: a process names its usage file itself. Where no answer comes it is let be."""
        asking = self._asking_of.pop(pid, None) or Background(lambda: is_counted_elsewhere(pid))
        if asking.has_ended(_FILE_TAKES_S / (1 + len(self._asking_of)) ** 2):  # many that hang hold nobody up
            self._note(f"file of {pid}", "")
            return asking.result()
        self._asking_of[pid] = asking
        self._note(f"file of {pid}", f"process {pid} is left alone: its usage file does not answer")
        return True

    def _counted_by(self, container: Contained) -> frozenset[int] | None:
        """Return those that the library counts now: a program may replace itself by one past the library."""
        if container.id not in self._counted:
            self._counted[container.id] = self._count(container)
        return self._counted[container.id]

    def _count(self, container: Contained) -> frozenset[int]:
        try:
            slots = read_counted(container.folder / "run" / "usage")
        except (OSError, BrokenUsageError):
            slots = frozenset()  # the library counts nobody in a file that a program of the container has broken
        counted = set()
        for pid in (pid for pid, each in self._programs.items() if each.container == container.id):
            with suppress(OSError, ValueError):
                if (namespace_of(pid), pid_inside(pid)) in slots:
                    counted.add(pid)
        return frozenset(counted)


def _called(share: Path) -> str:
    return f"slice {share.name}" if share.parent.name == SLICES else f"share {share}"


def clock() -> float:
    """Return monotonic time in seconds; it does not advance while the host is suspended."""
    return time.monotonic()
