"""Keeps the processes that hold memory of a GPU: each is looked up once, and watched until it ends."""

from collections.abc import Mapping, Set

from vgpurun.guard.membership import Membership
from vgpurun.guard.processes import is_still
from vgpurun.guard.snapshot import Program
from vgpurun.host.process_watch import ProcessWatch


class Programs:
    """The processes, by PID."""

    def __init__(self, membership: Membership) -> None:
        self.by_pid: dict[int, Program] = {}
        self._membership = membership
        self._watch = ProcessWatch()

    def keep(self, pids: Set[int]) -> None:
        """Know these processes, and no others."""
        self._watch.keep(pids)
        watched = self._watch.pids
        self.by_pid = {
            pid: each for pid, each in self.by_pid.items() if pid in watched or (pid in pids and is_still(each))
        }
        self._membership.keep(self.by_pid.keys())
        for pid in pids - self.by_pid.keys():
            self._watch.add(pid)
            self.by_pid[pid] = self._membership.describe(pid)

    def look_again(self, asked_of: Set[Program]) -> None:
        """Look up those that are in no container, or have moved. The engine has answered; it was asked of those."""
        for pid, each in list(self.by_pid.items()):
            if not each.container or self._membership.has_moved(pid):
                self.by_pid[pid] = self._membership.describe(pid, is_listed=each in asked_of)

    @property
    def containers(self) -> set[str]:
        """The containers that they are in."""
        return {each.container for each in self.by_pid.values() if each.container}

    def of(self, container: str) -> Mapping[int, Program]:
        """Return those of a container."""
        return {pid: each for pid, each in self.by_pid.items() if each.container == container}

    def close(self) -> None:
        """Watch none any more."""
        self._watch.close()
