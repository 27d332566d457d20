"""The exporter's figures under the names of HAMi's two exporters, for its dashboards and alerts (`--compat hami`).

HAMi's ratios go from 0 to 100. Outside of Kubernetes its pods and namespaces are containers and users. Left out is what
has no meaning on one host without Kubernetes and MIG: hami_mig_device_info, hami_node_gpu_mig_instance_info,
hami_node_gpu_overview, hami_resource_quota_used and hami_build_info.
"""

import platform
from collections.abc import Callable, Mapping
from typing import Any

from vgpurun.metrics.families import (
    DEVICE,
    GAUGE,
    HOST_GPU,
    Family,
    Scope,
    kernel_age_s,
    of_reading,
    reserved_bytes,
    reserved_ratio,
    used_ratio,
)
from vgpurun.metrics.snapshot import Device, GpuSeen

_BY_GPU: Mapping[str, Callable[[GpuSeen], str]] = {
    "device_index": lambda seen: seen.gpu.number,
    "device_uuid": lambda seen: seen.gpu.uuid,
    "device_type": lambda seen: f"NVIDIA-{seen.gpu.name}",
}
_HOST: Scope[GpuSeen] = Scope(HOST_GPU.rows, _BY_GPU)
_NODE_GPU: Scope[GpuSeen] = Scope(HOST_GPU.rows, {"node": lambda _: platform.node(), **_BY_GPU})
_CONTAINER: Scope[Device] = Scope(
    DEVICE.rows,
    {
        "namespace": lambda device: device.tenant.namespace or device.tenant.user,
        "pod": lambda device: device.tenant.pod or device.tenant.name,
        "container": lambda device: device.tenant.name,
        "vdevice_index": lambda device: str(device.number),
        "device_uuid": lambda device: device.gpu.uuid,
    },
)
_ALLOCATION: Scope[Device] = Scope(
    DEVICE.rows,
    {
        "namespace": lambda device: device.tenant.namespace or device.tenant.user,
        "node": lambda _: platform.node(),
        "pod": lambda device: device.tenant.pod or device.tenant.name,
        "container_index": lambda _: "0",
        "device_uuid": lambda device: device.gpu.uuid,
    },
)


def _percent(ratio: Callable[[Any], float | None]) -> Callable[[Any], float | None]:
    def value(row: Any) -> float | None:
        found = ratio(row)
        return None if found is None else found * 100

    return value


FAMILIES: tuple[Family[Any], ...] = (
    Family("hami_host_gpu_memory_used_bytes", GAUGE, "Memory of the GPU in use.", _HOST,
           lambda seen: seen.use.memory_used_bytes),
    Family("hami_host_gpu_utilization_ratio", GAUGE, "Utilisation of the GPU, 0 to 100.", _HOST,
           _percent(lambda seen: seen.utilization_ratio)),
    Family("hami_vgpu_memory_used_bytes", GAUGE, "Memory that a container uses.", _CONTAINER,
           lambda device: device.memory_used_bytes),
    Family("hami_vgpu_memory_limit_bytes", GAUGE, "Memory limit of a container; 0: none.", _CONTAINER,
           lambda device: device.memory_limit_bytes or 0),
    Family("hami_vgpu_memory_context_bytes", GAUGE, "Memory of a container's contexts.", _CONTAINER,
           of_reading("context_bytes")),
    Family("hami_vgpu_memory_module_bytes", GAUGE, "Memory of a container's modules.", _CONTAINER,
           of_reading("other_bytes")),
    Family("hami_vgpu_memory_buffer_bytes", GAUGE, "Memory that a container's programs have allocated.", _CONTAINER,
           of_reading("allocated_bytes")),
    Family("hami_container_device_memory_bytes", GAUGE, "Memory that a container uses.", _CONTAINER,
           lambda device: device.memory_used_bytes),
    Family("hami_container_device_utilization_ratio", GAUGE,
           "Share of the GPU's time that a container used in the last second, 0 to 100.", _CONTAINER,
           _percent(used_ratio)),
    Family("hami_container_last_kernel_elapsed_seconds", GAUGE, "Time since a container's last launch.", _CONTAINER,
           kernel_age_s),
    Family("hami_gpu_memory_limit_bytes", GAUGE, "Memory of the GPU.", _NODE_GPU, lambda seen: seen.gpu.memory_bytes),
    Family("hami_gpu_memory_allocated_bytes", GAUGE, "Sum of the memory limits on the GPU.", _NODE_GPU, reserved_bytes),
    Family("hami_gpu_core_limit_ratio", GAUGE, "Compute of the GPU, 100.", _NODE_GPU, lambda _: 100),
    Family("hami_gpu_core_allocated_ratio", GAUGE, "Sum of the compute limits on the GPU, 0 to 100 and above.",
           _NODE_GPU, _percent(reserved_ratio)),
    Family("hami_gpu_shared_count", GAUGE, "Containers that have the GPU.", _NODE_GPU, lambda seen: len(seen.devices)),
    Family("hami_node_gpu_memory_allocated_ratio", GAUGE, "Memory limits by memory of the GPU, 0 to 100 and above.",
           Scope(HOST_GPU.rows, {name: of for name, of in _NODE_GPU.labels.items() if name != "device_type"}),
           lambda seen: 100 * reserved_bytes(seen) / seen.gpu.memory_bytes),
    Family("hami_vgpu_memory_allocated_bytes", GAUGE, "Memory limit of a container.", _ALLOCATION,
           lambda device: device.memory_limit_bytes),
    Family("hami_vgpu_core_allocated_ratio", GAUGE, "Compute limit of a container, 0 to 100.", _ALLOCATION,
           _percent(lambda device: device.sm_limit_ratio)),
)  # fmt: skip
