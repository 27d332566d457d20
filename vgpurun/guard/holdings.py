"""Asks NVML what each process holds of each GPU and uses of its time. A driver may go, and another come."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from vgpurun.errors import GpuError
from vgpurun.host import gpus
from vgpurun.host.gpus import Gpu

_LIST_EVERY_S = 30.0
_UTILIZATION_S, _UTILIZATION_EVERY_S = 1.0, 0.05


class Holdings:
    """The GPUs of the host, and what is on them. `note` hears of each trouble of a source, and of its end."""

    def __init__(self, note: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self.gpus: Sequence[Gpu] = ()
        self._note = note
        self._clock = clock
        self._nvml = ExitStack()
        self._listed_s: float | None = None  # None: NVML is not open
        self._utilization: dict[str, tuple[float, Mapping[int, float]]] = {}

    def read(self, now_s: float) -> dict[str, dict[int, int]] | None:
        """Return the bytes that each process holds, by UUID and PID; None where NVML tells of no GPU."""
        held: dict[str, dict[int, int]] = {}
        try:
            if self._listed_s is None:
                self._nvml.enter_context(gpus.held_open())
            if self._listed_s is None or now_s - self._listed_s >= _LIST_EVERY_S:
                self._listed_s = now_s
                self.gpus = gpus.usable(gpus.survey().gpus)
            read = gpus.read_all_processes(self.gpus)
        except GpuError as error:
            self.close()  # a new driver may come
            self._note("nvml", f"the guard sees nothing: {error}")
            return None
        trouble = ""
        for gpu in self.gpus:
            found = read[gpu.uuid]
            if isinstance(found, GpuError):
                trouble = f"the guard does not see GPU {gpu.number}: {found}"
            else:
                held[gpu.uuid] = found
        if trouble and not held:
            self.close()
        self._note("nvml", trouble)
        return held if held else None

    def utilization(self, gpu: Gpu) -> Mapping[int, float]:
        """Return the percentage of a GPU's time that each process has used of late."""
        now_s = self._clock()
        read_s, found = self._utilization.get(gpu.uuid, (-1.0, {}))
        if now_s - read_s >= _UTILIZATION_EVERY_S:
            try:
                found = gpus.read_utilization(gpu, _UTILIZATION_S)
                self._note("utilization", "")
            except GpuError as error:
                self._note("utilization", f"compute is not guarded: {error}")
                found = {}
            self._utilization[gpu.uuid] = (now_s, found)
        return found

    def close(self) -> None:
        """Close NVML; the next read opens it again."""
        self._nvml.close()
        self._listed_s = None
