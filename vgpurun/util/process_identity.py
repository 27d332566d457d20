"""Which process a PID means: a PID alone is another process's once the first has ended, or the host was started again.

The kernel's start time tells two processes with one PID apart, and its boot id two boots with one start time. A signal
goes to a pidfd whose process was checked, so that no other can take its place between the check and the signal.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vgpurun.util.kernel_text import read_lines, read_text

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROC = Path("/proc")
_PF_EXITING = 0x4
_MOST_PARENTS = 64


@dataclass(frozen=True)
class Stat:
    """A process or one of its threads, as its stat file in /proc has it."""

    state: str
    parent: int
    flags: int
    threads: int
    started_ticks: int

    @property
    def is_exiting(self) -> bool:
        """Whether this thread has ended or is about to; of a process, the first one may, and the others go on."""
        return self.state in "ZX" or bool(self.flags & _PF_EXITING)

    @property
    def has_ended(self) -> bool:
        """Whether the whole process has: a zombie without other threads."""
        return self.state in "ZX" and self.threads <= 1


def read_stat(pid: int, task: int | None = None) -> Stat:
    """Return what the kernel says of a process, or of one of its threads. Raises OSError, and ValueError."""
    process = f"{_PROC}/{pid}" if task is None else f"{_PROC}/{pid}/task/{task}"
    words = read_text(f"{process}/stat").rpartition(")")[2].split()
    if len(words) < 20:
        raise ValueError(pid)
    return Stat(words[0], int(words[1]), int(words[6]), int(words[17]), int(words[19]))


def line_of(pid: int) -> Iterator[int]:
    """Yield a process and those that it descends from, up to a bounded number. Raises nothing."""
    with suppress(OSError, ValueError):
        for _ in range(_MOST_PARENTS):
            if pid <= 1:
                return
            yield pid
            pid = read_stat(pid).parent


def started_s(pid: int) -> float:
    """Return when a process was started, by the boot clock. Raises OSError, and ValueError."""
    return read_stat(pid).started_ticks / os.sysconf("SC_CLK_TCK")


@cache
def boot_id() -> str:
    """Return what tells this boot of the host from all others. Raises OSError."""
    return read_text(_BOOT_ID).strip()


def uid_of(pid: int) -> int:
    """Return the real user of a process. Raises OSError, and ValueError."""
    return int(_status(pid, "Uid")[0])


def pid_inside(pid: int) -> int:
    """Return a process's number in its own PID namespace. Raises OSError, and ValueError."""
    return int(_status(pid, "NSpid")[-1])


def _status(pid: int, name: str) -> list[str]:
    for line in read_lines(_PROC / str(pid) / "status"):
        if line.startswith(f"{name}:"):
            return line.split()[1:]
    raise ValueError(pid)


def pid_namespace(process: Path = Path("/proc/self")) -> int:
    """Return the kernel's number of the PID namespace of a process of /proc. Raises OSError."""
    return int(str((process / "ns" / "pid").readlink()).strip("pid:[]"))


def all_pids() -> Iterator[int]:
    """Yield the processes of this PID namespace, as far as /proc shows them to this user. Raises OSError."""
    return (int(each.name) for each in _PROC.iterdir() if each.name.isdecimal())


class ProcessIdentity(NamedTuple):
    """A process of this PID namespace: no other one, of this boot or another, has the same three."""

    pid: int
    started_ticks: int  # in the kernel's ticks since the boot
    boot_id: str

    def is_alive(self, uid: int | None = None) -> bool:
        """Whether it has not ended and, where `uid` is given, is that user's, who alone may say so of it.

        A process that /proc hides from this user (hidepid) may be it, and counts as alive.
        """
        is_this = self._is_running(uid)
        return _is_there(self.pid) if is_this is None else is_this

    @contextmanager
    def opened(self, uid: int | None = None) -> Iterator[int | None]:
        """Yield a pidfd of this very process, or None where it has ended, is not that user's or hidden. Raises OSError.

        The check is after the pidfd is opened: what had the PID before, and has it still, is what was opened.
        """
        try:
            file = os.pidfd_open(self.pid)
        except (ProcessLookupError, OverflowError):
            yield None
            return
        try:
            yield file if self._is_running(uid) else None
        finally:
            os.close(file)

    def signal(self, number: int, uid: int | None = None) -> bool:
        """Send this very process a signal; return whether it was there. Raises OSError, as where this user may not."""
        with self.opened(uid) as file:
            if file is None:
                return False
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, number)
                return True
        return False

    def _is_running(self, uid: int | None) -> bool | None:
        """Return None where /proc hides what has the PID."""
        if self.pid <= 0 or self.boot_id != boot_id():
            return False
        try:
            stat = read_stat(self.pid)
            is_this = stat.started_ticks == self.started_ticks and not stat.has_ended
            return is_this and (uid is None or uid_of(self.pid) == uid)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return False  # ended just now


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process, or None where it has ended. Raises nothing."""
    with suppress(OSError, ValueError):
        stat = read_stat(pid)
        return None if stat.has_ended else ProcessIdentity(pid, stat.started_ticks, boot_id())
    return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
