"""Tells when each target last used its GPUs: by the launches that the library measures, and by NVML."""

from collections.abc import Callable, Sequence

from vgpurun.errors import GpuError
from vgpurun.host import gpus as devices
from vgpurun.host.gpus import Gpu
from vgpurun.limits import usage_file
from vgpurun.suspend.agent.facts import Facts
from vgpurun.suspend.processes import belongs_to
from vgpurun.suspend.targets import Target
from vgpurun.util.process_identity import ProcessIdentity, identify

_LOOKS_BACK_S = 2.0  # twice the time between two notes, so that none falls between


class Uses:
    """The uses of all targets. Times are in seconds by `clock`, which is monotonic."""

    def __init__(self, gpus: Sequence[Gpu], facts: Facts, clock: Callable[[], float]) -> None:
        self._gpus = gpus
        self._facts = facts
        self._clock = clock
        self._busy_s: dict[str, float] = {}  # when each was last seen to use a GPU, or first seen at all
        self._owners: dict[int, tuple[ProcessIdentity | None, str]] = {}  # processes that use a GPU, and their target
        self._noted: frozenset[str] = frozenset()
        self._noted_s = float("-inf")

    def keep(self, targets: Sequence[Target], now_s: float) -> None:
        """Forget every target that is not among these.

        One that is started again is as new: it was not idle while it did not run.
        """
        self._busy_s = {each.id: self._busy_s.get(each.id, now_s) for each in targets}

    def begin_anew(self, target: Target) -> None:
        """Count a target's idleness from now on."""
        self._busy_s[target.id] = self._clock()

    def note(self, targets: Sequence[Target], now_s: float) -> None:
        """Note which of these NVML has seen to use a GPU of late.

        Raises GpuError where it does not tell of a GPU: then nobody on that one is idle.
        """
        trouble: GpuError | None = None
        for gpu in self._gpus if targets else ():
            try:
                used = devices.read_utilization(gpu, _LOOKS_BACK_S)
            except GpuError as error:
                trouble = error
                for target in targets:
                    if gpu.uuid in self._facts.marks(target).uuids:
                        self._busy_s[target.id] = now_s
            else:
                for pid in (pid for pid, percent in used.items() if percent > 0):
                    self._busy_s[self._owner_of(pid, targets)] = now_s
        self._owners = {pid: known for pid, known in self._owners.items() if known[0] and known[0].is_alive()}
        self._noted = frozenset(each.id for each in targets)
        self._noted_s = now_s
        if trouble:
            raise GpuError(f"nothing is idle for certain: {trouble}")

    def idle_s(self, target: Target, now_s: float) -> float:
        """Return for how long a target has been idle; 0 for one that was not among those noted last."""
        return now_s - self._last_busy_s(target, now_s) if target.id in self._noted else 0.0

    def last_seen_s(self, target: Target) -> tuple[float, float]:
        """Return when a target last used its GPUs, and when NVML was last asked."""
        return self._last_busy_s(target, self._clock()), self._noted_s

    def _last_busy_s(self, target: Target, now_s: float) -> float:
        """By CLOCK_MONOTONIC: the last launch that the library measured, or use that NVML has seen.

        A launch that is still to come was before a reboot: the usage file is kept, and the clock begins anew.
        """
        usage = target.limits_folder / "run" / "usage"
        readings = usage_file.read_usage(usage, sorted(self._facts.marks(target).uuids)) or []
        read_s = self._clock()
        launches_s = (each.last_launch_ns / 1e9 for each in readings)
        measured_s = max((launch_s for launch_s in launches_s if launch_s <= read_s), default=0)
        return min(now_s, max(measured_s, self._busy_s.setdefault(target.id, now_s)))

    def _owner_of(self, pid: int, targets: Sequence[Target]) -> str:
        process = identify(pid)
        known, owner = self._owners.get(pid, (None, ""))
        if known is None or known != process:
            owner = next((each.id for each in targets if belongs_to(pid, each.limits_folder)), "")
            self._owners[pid] = process, owner
        return owner
