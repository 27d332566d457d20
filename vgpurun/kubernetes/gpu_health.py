"""Which GPUs can be used: those that the driver lists, and has reported no fault of since the plugin started.

An XID is the driver's number for a fault. Those that a program causes by itself leave the GPU usable.
"""

import threading
import time
from collections.abc import Callable, Sequence

from vgpurun.errors import GpuError
from vgpurun.host.gpus import Gpu, XidWatch, find_missing

# Out of range, MMU fault, stopped or removed work, video decoder, context switch timeout: of one program alone.
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
_LOST = "the driver does not list it any more"
_INTERVAL_MS = 1000
_BEGINS_IN_S = 30.0


class Health:
    """Why GPUs cannot be used, by UUID. Threads wait for a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._faults: dict[str, str] = {}
        self._missing: frozenset[str] = frozenset()
        self._looked_s = time.monotonic()

    def reason(self, uuid: str) -> str | None:
        """Return why a GPU cannot be used, or None."""
        with self._changed:
            return self._faults.get(uuid) or (_LOST if uuid in self._missing else None)

    def set_fault(self, uuid: str, reason: str) -> None:
        """Note a fault of a GPU, which stays until the plugin starts again."""
        with self._changed:
            self._faults.setdefault(uuid, reason)
            self._notify()

    def set_missing(self, uuids: frozenset[str]) -> None:
        """Say which GPUs the driver does not list; one that is listed again can be used again."""
        with self._changed:
            self._looked_s = time.monotonic()
            if uuids != self._missing:
                self._missing = uuids
                self._notify()

    def age_s(self) -> float:
        """Return how long ago it was last looked which GPUs the driver lists, in seconds."""
        with self._changed:
            return time.monotonic() - self._looked_s

    def wait(self, version: int, is_over: Callable[[], bool], timeout_s: float | None = None) -> int:
        """Wait until something is not as at `version`, or it is over or late; returns the version then."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or is_over(), timeout_s)
            return self._version

    def wake(self) -> None:
        """Let those that wait look whether it is over."""
        with self._changed:
            self._changed.notify_all()

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()


class FaultWatch:
    """Keeps `health` up to date in the background, for the GPUs of a node, which may come to be more."""

    def __init__(self, health: Health, say: Callable[[str], None]) -> None:
        self._health = health
        self._say = say
        self._uuids: frozenset[str] = frozenset()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def include(self, gpus: Sequence[Gpu]) -> None:
        """Watch these GPUs: once this returns, no fault is missed, unless it has said otherwise."""
        uuids = frozenset(gpu.uuid for gpu in gpus)
        if uuids == self._uuids:
            return
        before, begun = self._over, threading.Event()
        self._uuids, self._over = uuids, threading.Event()
        given = (list(gpus), self._health, self._over.is_set, self._say, begun)
        self._thread = threading.Thread(target=watch, args=given, name="faults", daemon=True)
        self._thread.start()
        if not begun.wait(_BEGINS_IN_S):
            self._say("warning: the NVIDIA driver does not answer; faults of the GPUs may not be noticed")
        before.set()

    def stop(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._thread:
            self._thread.join(timeout=5)


def watch(
    gpus: Sequence[Gpu],
    health: Health,
    is_over: Callable[[], bool],
    say: Callable[[str], None],
    begun: threading.Event,
) -> None:
    """Keep `health` up to date until it is over. From `begun` on no fault is missed, as far as NVML reports them."""
    look = _Look(gpus, health, say)
    while not is_over():
        look.find_missing()
        begun.set()
        look.hear_faults()
    look.close()


class _Look:
    """Looks at these GPUs every second."""

    def __init__(self, gpus: Sequence[Gpu], health: Health, say: Callable[[str], None]) -> None:
        self._gpus = gpus
        self._health = health
        self._say = say
        self._said: set[str] = set()
        self._watches: dict[str, XidWatch | None] = {}  # None: it reports no faults

    def find_missing(self) -> None:
        """Say which GPUs the driver does not list; one that is back is told of when it is watched again."""
        try:
            missing = find_missing(self._gpus)
        except GpuError as error:
            self._say_once(f"warning: faults of the GPUs are not noticed: {error}")
            missing = frozenset(gpu.uuid for gpu in self._gpus)
        for gpu in self._gpus:
            if gpu.uuid in missing:
                self._forget(gpu.uuid)  # like NVML, once it is back
            elif gpu.uuid not in self._watches:
                self._watches[gpu.uuid] = self._open(gpu)
        self._health.set_missing(missing)

    def hear_faults(self) -> None:
        """Wait for faults, a part of the time for each GPU."""
        watched = [uuid for uuid, each in self._watches.items() if each]
        for uuid in watched:
            self._hear(uuid, _INTERVAL_MS // len(watched))
        if not watched:
            time.sleep(_INTERVAL_MS / 1000)

    def close(self) -> None:
        """Watch no more."""
        for uuid in list(self._watches):
            self._forget(uuid)

    def _open(self, gpu: Gpu) -> XidWatch | None:
        try:
            return XidWatch(gpu)
        except GpuError as error:
            self._say_once(f"{error}; that it is there is looked at every second")
            return None

    def _forget(self, uuid: str) -> None:
        if watched := self._watches.get(uuid):
            self._hear(uuid, 0)  # why it is lost may be on its way
            watched.close()
        self._watches.pop(uuid, None)

    def _hear(self, uuid: str, timeout_ms: int) -> None:
        watched = self._watches[uuid]
        xid = watched.wait(timeout_ms) if watched else None
        if xid is not None and xid not in _OF_PROGRAMS:
            self._say(f"GPU {uuid}: XID {xid}; nothing is placed on it until this plugin starts again")
            self._health.set_fault(uuid, f"the driver has reported XID {xid}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)
