"""The device plugin as kubelet talks to it: its messages on one side, node.py on the other."""

from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from vgpurun.errors import KubernetesError
from vgpurun.kubernetes.device_plugin.node import Node
from vgpurun.kubernetes.device_plugin.units import Resource
from vgpurun.kubernetes.health_streams import HealthStreams
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api

OPTIONS = api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class ResourceServer:
    """Answers kubelet's questions about one resource. `numa_nodes` are those of the GPUs, by UUID."""

    def __init__(self, node: Node, resource: Resource, numa_nodes: Mapping[str, int]) -> None:
        self._node = node
        self._resource = resource
        self._numa_nodes = numa_nodes
        self.streams = HealthStreams(node.health)

    def get_device_plugin_options(self, _: Any, __: grpc.ServicerContext) -> api.DevicePluginOptions:
        """Kubelet is to ask which units to take, and before each start of a container."""
        return OPTIONS

    def list_and_watch(self, request: api.Empty, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        """Yield all units with their health, now and whenever it changes."""
        del request
        for _ in self.streams.changes(context):
            yield api.ListAndWatchResponse(devices=self._devices())

    def get_preferred_allocation(
        self, request: api.PreferredAllocationRequest, _: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        """Name the units that kubelet should take."""
        chosen = [
            self._node.prefer(
                self._resource, each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
            )
            for each in request.container_requests
        ]
        containers = [api.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        return api.PreferredAllocationResponse(container_responses=containers)

    def allocate(self, request: api.AllocateRequest, _: grpc.ServicerContext) -> api.AllocateResponse:
        """Say what a container gets with its units."""
        if not request.container_requests:
            raise KubernetesError(f"no container asks for {self._resource.name}")
        given = [self._node.allocate(self._resource, each.devices_ids) for each in request.container_requests]
        return api.AllocateResponse(container_responses=given)

    def pre_start_container(
        self, request: api.PreStartContainerRequest, _: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        """Let a container start, or not."""
        self._node.start(self._resource, request.devices_ids)
        return api.PreStartContainerResponse()

    def _devices(self) -> list[api.Device]:
        usable = {uuid: self._node.health.reason(uuid) is None for uuid in self._resource.counts}
        topologies = {uuid: api.TopologyInfo(nodes=[api.NUMANode(ID=numa)]) for uuid, numa in self._numa_nodes.items()}
        return [
            api.Device(ID=unit, health="Healthy" if usable[uuid] else "Unhealthy", topology=topologies.get(uuid))
            for unit, uuid in self._resource.ids()
        ]
