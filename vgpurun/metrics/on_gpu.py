"""For how long containers, and users outside of them, had each GPU, by the GPU's own records. It takes root.

A context that is alone stays on its GPU when it has nothing to do, so that this is no less than what it worked.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import ChannelError
from vgpurun.host.freezer import CONTAINER_ID
from vgpurun.host.gpu_records import GpuTimes
from vgpurun.util.kernel_text import read_text
from vgpurun.util.process_identity import ProcessIdentity, identify
from vgpurun.util.threads import Helper
from vgpurun.util.users import name_of

_INTERVAL_S = 0.25  # in which a GPU records a thousand switches at most, of the four thousand that are kept
_LOOK_AFTER_S = 60.0


class Owner(NamedTuple):
    """A container, by its id, or a user of programs in none."""

    container: str
    user: str


class OnGpu:
    """The time since this began. `note` hears once why there is no more of it."""

    def __init__(self, times: GpuTimes, note: Callable[[str], None]) -> None:
        self._times = times
        self._note = note
        self._lock = threading.Lock()
        self._had_ns: Counter[tuple[str, Owner]] = Counter()  # by the GPU's UUID
        self._owners: dict[int, tuple[ProcessIdentity, Owner]] = {}
        self._ended = threading.Event()

    def start(self) -> None:
        """Read again and again, in a thread."""
        Helper(self._run).start()

    def close(self) -> None:
        """Read no more."""
        with self._lock:
            self._ended.set()

    def seconds(self) -> Mapping[tuple[str, Owner], float]:
        """Return the time of each owner by the GPU's UUID."""
        with self._lock:
            return {key: had_ns / 1e9 for key, had_ns in self._had_ns.items()}

    def _run(self) -> None:
        looked_s = time.monotonic()
        try:
            while not self._ended.wait(_INTERVAL_S):
                self.read()
                if time.monotonic() >= looked_s + _LOOK_AFTER_S:
                    self.forget_ended()
                    looked_s = time.monotonic()
        except ChannelError as error:
            self._note(f"the time on GPUs is counted no more: {error}")

    def read(self) -> None:
        """Count what was recorded since the last time. Raises ChannelError."""
        with self._lock:
            for uuid in () if self._ended.is_set() else self._times.uuids:
                for pid, had_ns in self._times.read(uuid):
                    if owner := self._owner_of(pid):
                        self._had_ns[uuid, owner] += had_ns

    def forget_ended(self) -> None:
        """Forget the processes that have ended, and containers in which none is left."""
        with self._lock:
            self._owners = {pid: each for pid, each in self._owners.items() if each[0].is_alive()}
            there = {owner for _, owner in self._owners.values()}
            for key in [key for key in self._had_ns if key[1].container and key[1] not in there]:
                del self._had_ns[key]

    def _owner_of(self, pid: int) -> Owner | None:
        """Return whose a process is, None where it had ended before it was seen."""
        if pid not in self._owners and (identity := identify(pid)):
            with suppress(OSError):
                process = Path("/proc", str(pid))
                ids = CONTAINER_ID.findall(read_text(process / "cgroup"))
                owner = Owner(ids[-1], "") if ids else Owner("", name_of(process.stat().st_uid))
                self._owners[pid] = identity, owner
        return self._owners[pid][1] if pid in self._owners else None
