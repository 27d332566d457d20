"""Who holds what on this host's GPUs: the readings behind `vgpurun smi`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun import gpus, region
from vgpurun.gpus import Gpu, GpuUse
from vgpurun.holders import local_processes, quotas_now
from vgpurun.quota import Quota
from vgpurun.region import DeviceReading
from vgpurun.utilization import Utilization

if TYPE_CHECKING:
    from vgpurun.engine import Engine, VgpurunContainer


@dataclass(frozen=True)
class TenantDevice:
    """One device of a tenant: its quota, and what it uses; None is what this user may not read."""

    gpu: Gpu
    quota: Quota
    reading: DeviceReading | None

    @property
    def memory_used_bytes(self) -> int | None:
        """What counts against the memory limit. The file is the container's to write: nonsense is cut."""
        return None if self.reading is None else min(self.reading.memory_used_bytes, self.gpu.memory_bytes)

    @property
    def utilization(self) -> Utilization | None:
        """None also where nothing was measured, as without a limit and alone on the GPU."""
        if self.reading is None or (self.quota.sm_percent is None and not self.reading.utilization.last_60s):
            return None
        return self.reading.utilization


@dataclass(frozen=True)
class Tenant:
    """A container, or a process of `vgpurun local`, that has limits; `container` is None for a process.

    `missing` are UUIDs and quotas of GPUs that are not among those asked about: of another driver, or gone.
    """

    kind: str
    id: str
    name: str
    what: str
    folder: Path
    devices: tuple[TenantDevice, ...] = ()
    missing: tuple[tuple[str, Quota], ...] = ()
    container: "VgpurunContainer | None" = None


@dataclass(frozen=True)
class Report:
    """All GPUs of the host with what NVML sees on them, and all tenants."""

    gpus: tuple[tuple[Gpu, GpuUse], ...]
    tenants: tuple[Tenant, ...]


def collect(all_gpus: Sequence[Gpu], engine: "Engine | None") -> Report:
    """Read who runs and what they use. Raises VgpurunError."""
    containers = engine.containers(everything=False) if engine else []
    processes = [
        _with_devices(Tenant(each.kind, each.id, each.name, each.what, each.folder), each.quotas, all_gpus)
        for each in local_processes()
    ]
    tenants = [*read_containers(containers, all_gpus), *processes]
    return Report(tuple(zip(all_gpus, gpus.read_use(all_gpus), strict=True)), tuple(tenants))


def read_containers(containers: Sequence["VgpurunContainer"], all_gpus: Sequence[Gpu]) -> list[Tenant]:
    """Read what these containers may use and what they use, in their order. Raises nothing."""
    return [
        _with_devices(
            Tenant("container", each.id, each.name, each.image, Path(each.state_folder), container=each),
            quotas_now(each),
            all_gpus,
        )
        for each in containers
    ]


def _with_devices(tenant: Tenant, quotas: Sequence[tuple[str, Quota]], all_gpus: Sequence[Gpu]) -> Tenant:
    by_uuid = {gpu.uuid: gpu for gpu in all_gpus}
    read = region.read_usage(tenant.folder / "run" / "usage", [uuid for uuid, _ in quotas])
    readings: Sequence[DeviceReading | None] = read or [None] * len(quotas)
    devices = [
        TenantDevice(by_uuid[uuid], quota, reading)
        for (uuid, quota), reading in zip(quotas, readings, strict=True)
        if uuid in by_uuid
    ]
    missing = [(uuid, quota) for uuid, quota in quotas if uuid not in by_uuid]
    return replace(tenant, devices=tuple(devices), missing=tuple(missing))
