"""For how long a group was off the GPUs while it might work there: by the GPUs' own records.

The driver tells each user which processes of his are on a GPU, and when they leave it: that others come instead need
not be known. Without records the group pays for all time as for its own. It does so, too, while the records know
nothing of it: a context that nobody drives away stays on the GPU with nothing to do, unrecorded.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from vgpurun.errors import ChannelError, GpuError
from vgpurun.host import gpu_records
from vgpurun.host.gpu_records import GpuRecords

_KNOWN_S = 1.0  # after a record of its own


class Beside:
    """The records. `is_own`: whether a process is one of the group's. `trouble`: why there are none."""

    def __init__(self, libcuda: str, uuids: Sequence[str], is_own: Callable[[int], bool]) -> None:
        self.trouble = ""
        self._gpus: list[_Gpu] = []
        self._records = ExitStack()
        try:
            records = self._records.enter_context(gpu_records.opened(libcuda))
            self._gpus = [_Gpu(records, each, is_own) for each in uuids if each in records.uuids]
        except (ChannelError, GpuError, OSError) as error:
            self.trouble = str(error)

    def away_s(self) -> float:
        """Return for how long the group was off each of the GPUs since the last time, 0 where that is not known."""
        with suppress(ChannelError):
            return min((each.away_s() for each in self._gpus), default=0.0)
        return 0.0

    def close(self) -> None:
        """Have the driver free it all."""
        self._records.close()


class _Gpu:
    """Whether the group is off a GPU, and since when by its clock."""

    def __init__(self, records: GpuRecords, uuid: str, is_own: Callable[[int], bool]) -> None:
        self._records = records
        self._uuid = uuid
        self._is_own = is_own
        self._is_off = False
        self._since_ns = records.now_ns(uuid)
        self._own_s = float("-inf")  # when a record of its own came last

    def away_s(self) -> float:
        away_ns, now_ns = 0, self._records.now_ns(self._uuid)
        for record in self._records.read(self._uuid):
            is_own = self._is_own(record.pid)
            self._own_s = time.monotonic() if is_own else self._own_s
            away_ns += self._passed_ns(record.time_ns)
            self._is_off = not (is_own and record.begins)
        away_ns += self._passed_ns(now_ns)
        return away_ns / 1e9 if time.monotonic() < self._own_s + _KNOWN_S else 0.0

    def _passed_ns(self, time_ns: int) -> int:
        """Return for how long the group was off it until then; from now on it counts anew."""
        passed_ns = max(0, time_ns - self._since_ns)
        self._since_ns = max(self._since_ns, time_ns)
        return passed_ns if self._is_off else 0
