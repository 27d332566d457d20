"""Tells which container a process is in, by the kernel's own word: its cgroups and its PID namespaces."""

import os
from collections.abc import Set
from pathlib import Path

from vgpurun.guard.listing import ANY, Listing
from vgpurun.guard.processes import namespace_of, namespaces_of
from vgpurun.guard.snapshot import Program
from vgpurun.host import freezer
from vgpurun.host.freezer import run_of
from vgpurun.util.kernel_text import read_text
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import read_stat
from vgpurun.util.users import name_of


class Membership:
    """Compares processes with the first one of each container, which the engine knows."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._own_namespaces = namespaces_of(os.getpid())
        self._namespaces: dict[str, tuple[str, int]] = {}  # of each container's run
        self._paths: dict[int, dict[str, str]] = {}  # the cgroups of each process, by controller, when it was described

    def keep(self, pids: Set[int]) -> None:
        """Forget all processes but these, and the containers that are not listed any more."""
        self._paths = {pid: each for pid, each in self._paths.items() if pid in pids}
        if self._namespaces.keys() - self._listing.containers.keys():
            self._namespaces = {id_: each for id_, each in self._namespaces.items() if id_ in self._listing.containers}

    def describe(self, pid: int, is_listed: bool = False) -> Program:
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
        ours = {id_: self._is_inside(pid, id_, is_listed) for id_ in ids & self._listing.containers.keys()}
        inside = [id_ for id_, is_inside in ours.items() if is_inside]
        if inside or None in ours.values():
            return Program(pid, started_ticks, inside[0] if len(inside) == 1 else None, user, command)
        ids -= ours.keys()
        inner = self._inner_namespaces(pid)
        if (ids or inner) and not is_listed:
            self._listing.unknown |= ids or {ANY}
            return Program(pid, started_ticks, None, user, command)
        foreign = next(iter(ids), "") or self._has_left(inner)
        return Program(pid, started_ticks, None if foreign is None else "", user, command, foreign or "")

    def has_moved(self, pid: int) -> bool:
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
        for container, first in list(self._listing.first_pids.items()) if inner else ():
            try:
                if namespace_of(first) in inner:
                    return container
            except OSError:
                self._listing.first_pids.pop(container)
                self._listing.unknown.add(container)
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
                first = self._listing.first_pids.get(container, 0)
                of_first = freezer.find(first, container)
                if of_first is None:
                    self._listing.first_pids.pop(container, None)
                if of_first is None or (of_first != cgroup and not is_listed):
                    self._listing.unknown.add(container)  # it may have been started again: the engine is asked
                    return None
                if of_first != cgroup:
                    return False
                known = self._namespaces[container] = (run, namespace_of(first))
            return known[1] in namespaces_of(pid) or None
        except OSError:
            return None
