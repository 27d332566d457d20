"""Who holds what on this host's GPUs: the readings behind `vgpurun smi`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun import gpus, region, state
from vgpurun.engine import Engine, VgpurunContainer
from vgpurun.gpus import Gpu, GpuUse
from vgpurun.plan import quotas_from_json
from vgpurun.quota import Quota
from vgpurun.region import DeviceReading
from vgpurun.utilization import Utilization


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
    """A container, or a process of `vgpurun local`, that runs under limits."""

    kind: str
    id: str
    name: str
    what: str
    devices: tuple[TenantDevice, ...]


@dataclass(frozen=True)
class Report:
    """All GPUs of the host with what NVML sees on them, and all tenants."""

    gpus: tuple[tuple[Gpu, GpuUse], ...]
    tenants: tuple[Tenant, ...]


@dataclass(frozen=True)
class _Known:
    """A tenant whose usage has not been read yet."""

    kind: str
    id: str
    name: str
    what: str
    folder: Path
    quotas: tuple[tuple[str, Quota], ...]

    def read(self) -> list[DeviceReading] | None:
        return region.read_usage(self.folder / "run" / "usage", [uuid for uuid, _ in self.quotas])


def collect(all_gpus: Sequence[Gpu], engine: Engine | None) -> Report:
    """Read who is there and what they use. Raises VgpurunError."""
    by_uuid = {gpu.uuid: gpu for gpu in all_gpus}
    tenants = [
        Tenant(tenant.kind, tenant.id, tenant.name, tenant.what, _devices(tenant, by_uuid))
        for tenant in [*(_containers(engine) if engine else []), *_processes()]
    ]
    return Report(tuple(zip(all_gpus, gpus.read_use(all_gpus), strict=True)), tuple(tenants))


def _devices(tenant: _Known, by_uuid: dict[str, Gpu]) -> tuple[TenantDevice, ...]:
    """The GPUs of a tenant, less those that this host no longer has."""
    readings: Sequence[DeviceReading | None] = tenant.read() or [None] * len(tenant.quotas)
    return tuple(
        TenantDevice(by_uuid[uuid], quota, reading)
        for (uuid, quota), reading in zip(tenant.quotas, readings, strict=True)
        if uuid in by_uuid
    )


def _containers(engine: Engine) -> list[_Known]:
    return [
        _Known("container", each.id, each.name, each.image, Path(each.state_folder), _quotas_now(each))
        for each in engine.containers(everything=False)
    ]


def _quotas_now(container: VgpurunContainer) -> tuple[tuple[str, Quota], ...]:
    """The limits may have been changed since the label was written."""
    limits = None
    with suppress(OSError):
        limits = region.read_limits(Path(container.state_folder) / "etc" / "limits")
    return _quotas(container.quota_json) if limits is None else tuple(limits)


def _processes() -> list[_Known]:
    found = []
    for folder in state.folders():
        owner = state.read_owner(folder)
        if owner and owner.get("engine") is None and state.is_held(folder):
            command = " ".join(map(str, owner.get("command") or []))
            pid = str(owner.get("pid"))
            found.append(_Known("process", pid, f"process {pid}", command, folder, _quotas(str(owner.get("quota")))))
    return found


def _quotas(text: str) -> tuple[tuple[str, Quota], ...]:
    return tuple(quotas_from_json(text))
