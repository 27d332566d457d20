"""The report of `vgpurun smi` as plain data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views.free import to_json as free_json
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.host.memory_limits import MemoryLimits
from vgpurun.inventory.cgroups import DriverLimits
from vgpurun.inventory.usage import Report, Tenant, TenantDevice

_OF_FREE = ("memory_reserved_bytes", "memory_free_bytes", "sm_reserved_percent", "sm_free_percent")


def to_json(report: Report, free: Mapping[str, GpuCapacity]) -> dict[str, Any]:
    """Return the report, and what is free by the GPUs' UUIDs, as plain data.

    Sizes are in bytes, shares in percent; None is unknown or no limit.
    """
    return {
        "gpus": [
            {
                **_gpu_json(gpu, use),
                **_free_json(free[gpu.uuid]),
                "outside": [asdict(each) for each in report.outside(gpu)],
                "memory_outside_bytes": report.outside_bytes(gpu, use),
            }
            for gpu, use in report.gpus
        ],
        "containers": [
            _tenant_json(tenant, report.driver_limits) for tenant in report.tenants if tenant.kind == "container"
        ],
        "processes": [
            _tenant_json(tenant, report.driver_limits) for tenant in report.tenants if tenant.kind == "process"
        ],
        "slices": [_tenant_json(tenant, report.driver_limits) for tenant in report.tenants if tenant.kind == "slice"],
    }


def _gpu_json(gpu: Gpu, use: GpuUse) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "mig_index": gpu.mig_index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_total_bytes": gpu.memory_bytes,
        "memory_used_bytes": use.memory_used_bytes,
        "utilization_percent": use.utilization_percent,
        "temperature_c": use.temperature_c,
        "power_w": use.power_w,
    }


def _free_json(capacity: GpuCapacity) -> dict[str, Any]:
    """Return the fields that `vgpurun free` has for it too."""
    described = free_json(capacity, "")
    return {name: described[name] for name in _OF_FREE}


def _tenant_json(tenant: Tenant, driver_limits: DriverLimits) -> dict[str, Any]:
    what = {"container": "image", "process": "command", "slice": "members"}[tenant.kind]
    return {
        "id": tenant.id,
        "name": tenant.name,
        "user": tenant.user,
        what: tenant.what,
        "slice": tenant.slice_name or None,
        "within": tenant.within or None,
        "devices": [device_json(each, driver_limits.get((tenant.id, each.gpu.uuid))) for each in tenant.devices],
    }


def device_json(device: TenantDevice, driver: MemoryLimits | None = None) -> dict[str, Any]:
    """Return one GPU of a tenant as plain data. For a part of a slice only the memory is known.

    `driver`: what the driver itself holds it to.
    """
    memory, busy = device.reading, device.utilization
    reading = None if device.is_part else memory
    return {
        "gpu_index": device.gpu.index,
        "mig_index": device.gpu.mig_index,
        "uuid": device.gpu.uuid,
        "memory_limit_bytes": device.quota.memory_bytes,
        "memory_guaranteed_bytes": device.quota.reserved_bytes,
        "memory_limit_driver_bytes": driver and driver.most_bytes,
        "memory_shown_bytes": device.quota.virtual_bytes or device.quota.memory_bytes,
        "memory_used_bytes": device.memory_used_bytes,
        "memory_allocated_bytes": memory.allocated_bytes if memory else None,
        "memory_overhead_bytes": memory.overhead_bytes if memory else None,
        "memory_context_bytes": memory.context_bytes if memory else None,
        "memory_host_bytes": memory.host_bytes if memory else None,
        "sm_limit_percent": device.quota.sm_percent,
        "together": device.quota.together,
        "sms_percent": device.quota.sms_percent,
        "sm_policy": device.quota.sm_policy.name.lower(),
        "priority": device.quota.priority.name.lower(),
        "paused": device.quota.paused,
        "suspended": device.quota.is_suspended,
        "takes_turns": device.quota.takes_turns,
        "swapped": device.quota.is_swapped,
        "memory_suspended_bytes": device.suspended_bytes,
        "sm_used_percent": round(busy.last_1s, 1) if busy else None,
        "sm_used_10s_percent": round(busy.last_10s, 1) if busy else None,
        "sm_used_60s_percent": round(busy.last_60s, 1) if busy else None,
        "throttled_ns": reading.throttled_ns if reading else None,
        "launches": reading.launches if reading else None,
        "refusals": reading.refusals if reading else None,
        "processes": memory.processes if memory else None,
        "not_enforced": list(reading.not_enforced) if reading else None,
        "limiter": memory.limiter if memory else None,
    }
