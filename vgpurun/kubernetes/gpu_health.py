"""Which GPUs can be used: those that the driver lists, and has reported no fault of since the plugin started.

An XID is the driver's number for a fault. Those that a program causes by itself leave the GPU usable.
"""

import threading
from collections.abc import Callable, Sequence

from vgpurun.errors import GpuError
from vgpurun.host.gpus import Gpu, XidWatch, find_missing

# Out of range, MMU fault, stopped or removed work, video decoder, context switch timeout: of one program alone.
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
_LOST = "the driver does not list it any more"
_INTERVAL_MS = 1000


class Health:
    """Why GPUs cannot be used, by UUID. Threads wait for a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._faults: dict[str, str] = {}
        self._missing: frozenset[str] = frozenset()

    def reason(self, uuid: str) -> str | None:
        """Return why a GPU cannot be used, or None."""
        with self._changed:
            return self._faults.get(uuid) or (_LOST if uuid in self._missing else None)

    def set_fault(self, uuid: str, reason: str) -> None:
        """A GPU has a fault, which stays until the plugin starts again."""
        with self._changed:
            self._faults.setdefault(uuid, reason)
            self._notify()

    def set_missing(self, uuids: frozenset[str]) -> None:
        """Say which GPUs the driver does not list; one that is listed again can be used again."""
        with self._changed:
            if uuids != self._missing:
                self._missing = uuids
                self._notify()

    def wait(self, version: int, is_over: Callable[[], bool]) -> int:
        """Wait until something is not as at `version`, or it is over; returns the version then."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or is_over())
            return self._version

    def wake(self) -> None:
        """Let those that wait look whether it is over."""
        with self._changed:
            self._changed.notify_all()

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()


def watch(
    gpus: Sequence[Gpu],
    health: Health,
    is_over: Callable[[], bool],
    say: Callable[[str], None],
    begun: threading.Event | None = None,
) -> None:
    """Keep `health` up to date until it is over; from `begun` on no fault is missed. Raises GpuError without NVML."""
    with XidWatch(gpus) as xids:
        if begun:
            begun.set()
        for gpu in xids.unwatched:
            say(f"GPU {gpu.uuid} reports no faults; that it is there is looked at every second")
        while not is_over():
            if found := xids.wait(_INTERVAL_MS):
                uuid, xid = found
                if xid not in _OF_PROGRAMS:
                    say(f"GPU {uuid}: XID {xid}; nothing is placed on it until this plugin starts again")
                    health.set_fault(uuid, f"the driver has reported XID {xid}")
            try:
                missing = find_missing(gpus)
            except GpuError:
                missing = frozenset(gpu.uuid for gpu in gpus)
            health.set_missing(missing)
