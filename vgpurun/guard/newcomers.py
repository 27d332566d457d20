"""Tells when the guard should look at once: a process started in a container just now has opened the driver's device.

NVML lists it soon after that. One number of the kernel's says whether any process has been started at all.
"""

import os
from collections.abc import Callable, Container
from contextlib import suppress

from vgpurun.guard.launches import GATHERED
from vgpurun.host.freezer import CONTAINER_ID

_DEVICE = "nvidiactl"
_LAST = "/proc/loadavg"  # its last word is the number that the kernel has given last
_YOUNG_S = 30.0  # frameworks take seconds before they open the device
_EXPECTED_S = 3.0  # from then on until it holds memory of a GPU; a monitor never does
_MOST_YOUNG = 32  # are looked at; with more processes each moment, those that live longest
_MOST_NEW = 256
_LINE_BYTES = 256
_MOST_CGROUPS_BYTES = 64 << 10


class Newcomers:
    """The processes that were started of late."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = os.open(_LAST, os.O_RDONLY | os.O_CLOEXEC)
        self._last = self._last_number()
        self._young: dict[int, float] = {}  # since when
        self._opened: dict[int, float] = {}

    def are_expected(self, known: Container[int]) -> bool:
        """Whether one is about to hold memory of a GPU that is not known to."""
        last = self._last_number()
        if last == self._last and not (self._young or self._opened):
            return False  # mostly
        now_s = self._clock()
        if last != self._last:
            self._young |= {pid: now_s for pid in self._new(last) if _is_held_apart(pid)}
            self._last = last
        for pid, since_s in list(self._young.items())[:_MOST_YOUNG]:
            opened = None if pid in known or now_s - since_s > _YOUNG_S else _has_opened(pid)
            if opened is not False:
                del self._young[pid]
            if opened:
                self._opened[pid] = now_s
        self._opened = {
            pid: at_s for pid, at_s in self._opened.items() if pid not in known and now_s - at_s < _EXPECTED_S
        }
        return bool(self._opened)

    def close(self) -> None:
        """Close its file."""
        os.close(self._file)

    def _last_number(self) -> int:
        return int(os.pread(self._file, _LINE_BYTES, 0).split()[-1])

    def _new(self, last: int) -> range:
        first = self._last + 1 if last > self._last else 1  # the numbers have begun anew
        return range(max(first, last - _MOST_NEW + 1), last + 1)


def _is_held_apart(number: int) -> bool:
    """Whether it is the number of a process, and no other thread's, in a container or a launch that the guard holds."""
    with suppress(OSError):
        cgroups = _cgroups_of(number)
        if CONTAINER_ID.search(cgroups) or GATHERED in cgroups:
            os.close(os.pidfd_open(number))  # asked last: most processes of a host are in neither
            return True
    return False


def _cgroups_of(number: int) -> str:
    """Return what the kernel says of a process's cgroups, by as few calls as there can be. Raises OSError."""
    file = os.open(f"/proc/{number}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fsdecode(os.read(file, _MOST_CGROUPS_BYTES))
    finally:
        os.close(file)


def _has_opened(pid: int) -> bool | None:
    """Whether a process has the device open; None where it has ended."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as files:
            return any(_is_device(each.path) for each in files)
    except OSError:
        return None


def _is_device(path: str) -> bool:
    with suppress(OSError):
        return _DEVICE in os.readlink(path)  # noqa: PTH115 - ten times a second
    return False
