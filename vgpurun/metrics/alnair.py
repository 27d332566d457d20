"""The exporter's figures under the names of Alnair's exporter, for its dashboards (`--compat alnair`).

Alnair counts by process, vgpurun by container: there is no label pid, but the container stands in pod_name and its user
in namespace. Left out is what is not measured: alnair_cuda_available_token, and copies (alnair_cuda_mem_copy_*), which
`--profile` counts.
"""

import platform
from collections.abc import Callable, Mapping
from typing import Any

from vgpurun.metrics.families import DEVICE, GAUGE, UNTYPED, Family, Scope, used_ratio
from vgpurun.metrics.snapshot import Device, Snapshot, TenantSeen

_OF_TENANT: Mapping[str, Callable[[TenantSeen], str]] = {
    "pod_name": lambda tenant: tenant.pod or tenant.name,
    "namespace": lambda tenant: tenant.namespace or tenant.user,
    "nodeName": lambda _: platform.node(),
}


def _of_its_tenant(read: Callable[[TenantSeen], str]) -> Callable[[Device], str]:
    return lambda device: read(device.tenant)


_DEVICE: Scope[Device] = Scope(
    DEVICE.rows,
    {
        "gpu_uuid": lambda device: device.gpu.uuid,
        **{name: _of_its_tenant(read) for name, read in _OF_TENANT.items()},
    },
)


def _tenants(snapshot: Snapshot) -> list[TenantSeen]:
    return [tenant for tenant in snapshot.tenants if tenant.devices]


_TENANT: Scope[TenantSeen] = Scope(_tenants, _OF_TENANT)


def _util_percent(device: Device) -> float | None:
    ratio = used_ratio(device)
    return None if ratio is None else ratio * 100


def _sum(name: str) -> Callable[[TenantSeen], float | None]:
    """Over all GPUs of a tenant whose usage can be read."""

    def value(tenant: TenantSeen) -> float | None:
        readings = [device.reading for device in tenant.devices if device.reading]
        return sum(getattr(reading, name) for reading in readings) if readings else None

    return value


FAMILIES: tuple[Family[Any], ...] = (
    Family("alnair_gpu_util", GAUGE, "Share of the GPU's time that a container used in the last second, 0 to 100.",
           _DEVICE, _util_percent),
    Family("alnair_gpu_mem_used", GAUGE, "Memory of the GPU that a container uses, in bytes.", _DEVICE,
           lambda device: device.memory_used_bytes),
    Family("alnair_cuda_launch_kernel_cnt", UNTYPED, "Launches that a container has made since it began.", _TENANT,
           _sum("launches")),
    Family("alnair_cuda_mem_used", GAUGE, "Memory that a container's programs have allocated, in bytes.", _TENANT,
           _sum("allocated_bytes")),
)  # fmt: skip
