"""The device plugin: a server for each resource, known to kubelet for as long as kubelet and this plugin run.

When kubelet starts it removes every socket in its folder and makes its own anew. Both are looked at every second.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from vgpurun.errors import KubernetesError
from vgpurun.kubernetes import rpc
from vgpurun.kubernetes.node import Node
from vgpurun.kubernetes.probes import Pulse
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api
from vgpurun.kubernetes.units import Resource

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
_OPTIONS = api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
_INTERVAL_S = 1.0
_services = api.DESCRIPTOR.services_by_name


class ResourceServer:
    """Answers kubelet's questions about one resource. `numa_nodes` are those of the GPUs, by UUID."""

    def __init__(self, node: Node, resource: Resource, numa_nodes: Mapping[str, int]) -> None:
        self._node = node
        self._resource = resource
        self._numa_nodes = numa_nodes
        self._is_closed = False

    def close(self) -> None:
        """End the streams, so that nothing is left to wait for."""
        self._is_closed = True
        self._node.health.wake()

    def get_device_plugin_options(self, _: Any, __: grpc.ServicerContext) -> api.DevicePluginOptions:
        """Kubelet is to ask which units to take, and before each start of a container."""
        return _OPTIONS

    def list_and_watch(self, _: Any, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        """Yield all units with their health, now and whenever it changes."""
        health = self._node.health

        def is_over() -> bool:
            return self._is_closed or not context.is_active()

        context.add_callback(health.wake)
        version = health.wait(-1, is_over)
        while not is_over():
            yield api.ListAndWatchResponse(devices=self._devices())
            version = health.wait(version, is_over)

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
            raise KubernetesError(f"{self._resource.name} is asked for by no container")
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


def socket_name(resource: Resource) -> str:
    """Return the name of a resource's socket in kubelet's folder."""
    return f"vgpurun-{resource.name.replace('/', '-')}.sock"


def serve(
    node: Node,
    folder: Path,
    numa_nodes: Mapping[str, int],
    over: threading.Event,
    say: Callable[[str], None],
    pulse: Pulse,
) -> None:
    """Serve every resource in kubelet's `folder`, and register it with every kubelet that comes, until it is over."""
    resources = [resource for resource in node.resources if any(resource.counts.values())]
    servers: list[tuple[ResourceServer, rpc.Server]] = []
    known: tuple[int, int] | None = None
    failure = ""
    try:
        while not over.is_set():
            kubelet = rpc.identity(folder / KUBELET_SOCKET)
            if kubelet and (kubelet != known or not all(server.is_reachable for _, server in servers)):
                known = None
                try:
                    _stop(servers)
                    for resource in resources:
                        path = folder / socket_name(resource)
                        behind = ResourceServer(node, resource, numa_nodes)
                        servers.append((behind, rpc.Server(path, (_services["DevicePlugin"], behind))))
                    for resource in resources:
                        _register(folder, resource)
                    known, failure = kubelet, ""
                    say(f"kubelet knows {', '.join(resource.name for resource in resources)}")
                except (KubernetesError, grpc.RpcError) as error:
                    reason = error.details() if isinstance(error, grpc.RpcError) else str(error)
                    if reason != failure:
                        say(f"kubelet has not taken the registration, which is tried again: {reason}")
                    failure = reason
            pulse.beat(is_ready=known is not None)
            over.wait(_INTERVAL_S)
    finally:
        _stop(servers)


def _register(folder: Path, resource: Resource) -> None:
    request = api.RegisterRequest(
        version=VERSION, endpoint=socket_name(resource), resource_name=resource.name, options=_OPTIONS
    )
    with rpc.client(folder / KUBELET_SOCKET, _services["Registration"]) as kubelet:
        kubelet.register(request)


def _stop(servers: list[tuple[ResourceServer, rpc.Server]]) -> None:
    while servers:
        behind, server = servers.pop()
        behind.close()
        server.stop()
