"""Tells kubelet of the health of devices, which it shows in the status of the pods that have them."""

import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra.model import device_name
from vgpurun.kubernetes.gpu_health import Health
from vgpurun.kubernetes.health_streams import HealthStreams
from vgpurun.kubernetes.proto import dra_health_pb2 as api

# The names that kubelet knows. That of 1.36 calls the second whether a plugin names it or not.
VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_AGAIN_S = 10  # kubelet takes a device's health for unknown after 30
_LOOKS_WITHIN_S = 30  # the watch looks every second; one that is stuck knows nothing


class HealthService:
    """NodeWatchResources. `list_gpus` returns all GPUs that have ever been offered by `node`."""

    def __init__(self, node: str, health: Health, list_gpus: Callable[[], Sequence[Gpu]]) -> None:
        self._node = node
        self._health = health
        self._list_gpus = list_gpus
        self.streams = HealthStreams(health)

    def node_watch_resources(
        self, request: api.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[api.NodeWatchResourcesResponse]:
        """Yield the health of all devices, at once, at every change, and every now and then."""
        del request
        for _ in self.streams.changes(context, _AGAIN_S):
            yield api.NodeWatchResourcesResponse(devices=map(self._device, self._list_gpus()))

    def _device(self, gpu: Gpu) -> api.DeviceHealth:
        status, reason = api.HealthStatus.HEALTHY, self._health.reason(gpu.uuid)
        if reason is not None:
            status = api.HealthStatus.UNHEALTHY
        elif self._health.age_s() > _LOOKS_WITHIN_S:
            status, reason = api.HealthStatus.UNKNOWN, "faults of the GPU are not noticed"
        return api.DeviceHealth(
            device=api.DeviceIdentifier(pool_name=self._node, device_name=device_name(gpu)),
            health=status,
            last_updated_time=int(time.time()),
            message=reason or "",
        )
