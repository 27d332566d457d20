"""Watches processes until they end, without their numbers, which may be others' by then."""

import os
import select
from collections.abc import Set
from contextlib import suppress


class ProcessWatch:
    """Holds a file of each process, which the kernel makes readable at the process's end; one call asks about all."""

    def __init__(self) -> None:
        self._ended = select.epoll()
        self._files: dict[int, int] = {}
        self._pids: dict[int, int] = {}  # by file

    def add(self, pid: int) -> None:
        """Watch a process; one that has ended, or for which this process has no file left, is not watched."""
        with suppress(OSError):
            file = self._files[pid] = os.pidfd_open(pid)
            self._pids[file] = pid
            self._ended.register(file, select.EPOLLIN)

    def keep(self, pids: Set[int]) -> None:
        """Forget those that have ended, and all but these."""
        for file, _ in self._ended.poll(0, max(len(self._files), 1)):
            self._forget(self._pids[file])
        for pid in self._files.keys() - pids:
            self._forget(pid)

    @property
    def pids(self) -> Set[int]:
        """The processes that were there when they were added, and had not ended at the last keep()."""
        return self._files.keys()

    def close(self) -> None:
        """Watch none any more."""
        self.keep(frozenset())

    def _forget(self, pid: int) -> None:
        file = self._files.pop(pid)
        del self._pids[file]
        os.close(file)
