"""Who holds what on this host's GPUs: the readings behind `vgpurun smi`."""

import time
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


@dataclass(frozen=True)
class TenantDevice:
    """One device of a tenant: its quota, and what it uses; None is what this user may not read.

    Compute is measured only where it is limited.
    """

    gpu: Gpu
    quota: Quota
    reading: DeviceReading | None
    compute_percent: float | None

    @property
    def memory_used_bytes(self) -> int | None:
        """What counts against the memory limit. The file is the container's to write: nonsense is cut."""
        return None if self.reading is None else min(self.reading.memory_used_bytes, self.gpu.memory_bytes)


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


def collect(all_gpus: Sequence[Gpu], engine: Engine | None, interval_s: float = 0.5) -> Report:
    """Read everything twice, `interval_s` apart: compute use is the GPU time charged between. Raises VgpurunError."""
    known = [*(_containers(engine) if engine else []), *_processes()]
    first, began = [tenant.read() for tenant in known], time.monotonic()
    if known:
        time.sleep(interval_s)
    second, ended = [tenant.read() for tenant in known], time.monotonic()
    by_uuid = {gpu.uuid: gpu for gpu in all_gpus}
    tenants = [
        Tenant(
            tenant.kind, tenant.id, tenant.name, tenant.what, _devices(tenant, by_uuid, before, after, ended - began)
        )
        for tenant, before, after in zip(known, first, second, strict=True)
    ]
    return Report(tuple(zip(all_gpus, gpus.read_use(all_gpus), strict=True)), tuple(tenants))


def _devices(
    tenant: _Known,
    by_uuid: dict[str, Gpu],
    before: Sequence[DeviceReading] | None,
    after: Sequence[DeviceReading] | None,
    elapsed_s: float,
) -> tuple[TenantDevice, ...]:
    devices = []
    for number, (uuid, quota) in enumerate(tenant.quotas):
        if uuid not in by_uuid:
            continue  # a GPU that this host no longer has
        reading, percent = None, None
        if before is not None and after is not None:
            reading = after[number]
            busy_s = max(0, reading.busy_ns - before[number].busy_ns) / 1e9
            percent = None if quota.sm_percent is None else min(100.0, 100 * busy_s / elapsed_s)
        devices.append(TenantDevice(by_uuid[uuid], quota, reading, percent))
    return tuple(devices)


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
