"""The life of the device plugin: a server for each resource, known to kubelet for as long as both run.

When kubelet starts it removes every socket in its folder and makes its own anew. Both are looked at twice a second.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from vgpurun.console.signals import Ending
from vgpurun.errors import KubernetesError
from vgpurun.host import library
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.gpus import Gpu, numa_node, usable
from vgpurun.kubernetes import checkpoint, rpc
from vgpurun.kubernetes.device_plugin.node import Node
from vgpurun.kubernetes.device_plugin.service import OPTIONS, ResourceServer
from vgpurun.kubernetes.device_plugin.units import Resource
from vgpurun.kubernetes.gpu_health import FaultWatch, Health
from vgpurun.kubernetes.library import install_library
from vgpurun.kubernetes.locks import only_one
from vgpurun.kubernetes.probes import Pulse
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api
from vgpurun.kubernetes.state import state_root
from vgpurun.storage import state

_VERSION = "v1beta1"
_KUBELET_SOCKET = "kubelet.sock"
_INTERVAL_S = 0.5
_STUCK_AFTER_S = 120
_services = api.DESCRIPTOR.services_by_name


class Plugin:
    """The device plugin of a node. `kubelet` is its folder for device plugins, `root` that of the state folders.

    `driver` says how containers with some GPUs get the driver. `may_disable`: whether a program may lift its limits by
    CUDA_DISABLE_CONTROL=true. `say` is given a line for the log.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        resources: Sequence[Resource],
        driver: Callable[[Sequence[Gpu]], DriverPlan],
        may_disable: bool,
        kubelet: Path,
        root: Path,
        say: Callable[[str], None],
    ) -> None:
        self._gpus = gpus
        self._resources = resources
        self._driver = driver
        self._may_disable = may_disable
        self._kubelet = kubelet
        self._root = root
        self._say = say
        self._servers: list[tuple[ResourceServer, rpc.Server]] = []
        self.pulse = Pulse(_STUCK_AFTER_S)

    def run(self, ending: Ending) -> None:
        """Serve until it is told to end. Raises VgpurunError for what cannot be served at all."""
        with only_one(state_root(self._root), ending.wait, self.pulse, self._say) as is_mine:
            if is_mine:
                self._serve(ending)

    def _serve(self, ending: Ending) -> None:
        state.make_lock_dir()
        installed = install_library(self._root, library.find_or_build(self._say).path)
        self._driver(usable(self._gpus)[:1])  # faults of the driver show now
        health, record = Health(), self._kubelet / checkpoint.FILE_NAME
        faults = FaultWatch(health, self._say)
        node = Node(self._gpus, self._resources, health, self._root, record, installed, self._driver, self._may_disable)
        try:
            faults.include(self._gpus)
            self._serve_kubelets(node, ending)
        finally:
            self._close()
            faults.stop()

    def _serve_kubelets(self, node: Node, ending: Ending) -> None:
        """Serve every resource, and register it with every kubelet that comes."""
        known: tuple[int, int] | None = None
        failure = ""
        while True:
            kubelet = rpc.identity(self._kubelet / _KUBELET_SOCKET)
            if kubelet and (kubelet != known or not all(server.is_reachable for _, server in self._servers)):
                known = None
                try:
                    self._open(node)
                    known, failure = kubelet, ""
                except (KubernetesError, grpc.RpcError) as error:
                    reason = error.details() if isinstance(error, grpc.RpcError) else str(error)
                    if reason != failure:
                        self._say(f"kubelet has not taken the registration, which is tried again: {reason}")
                    failure = reason
            self.pulse.beat(is_ready=known is not None)
            if ending.wait(_INTERVAL_S):
                return

    def _open(self, node: Node) -> None:
        """Serve anew, and register. Raises KubernetesError and grpc.RpcError."""
        self._close()
        resources = [resource for resource in node.resources if any(resource.counts.values())]
        numa_nodes = {gpu.uuid: numa for gpu in self._gpus if (numa := numa_node(gpu)) is not None}
        for resource in resources:
            behind = ResourceServer(node, resource, numa_nodes)
            path = self._kubelet / _socket_name(resource)
            self._servers.append((behind, rpc.Server(path, (_services["DevicePlugin"], behind))))
        for resource in resources:
            self._register(resource)
        self._say(f"kubelet knows {', '.join(resource.name for resource in resources)}")

    def _register(self, resource: Resource) -> None:
        request = api.RegisterRequest(
            version=_VERSION, endpoint=_socket_name(resource), resource_name=resource.name, options=OPTIONS
        )
        with rpc.client(self._kubelet / _KUBELET_SOCKET, _services["Registration"]) as kubelet:
            kubelet.register(request)

    def _close(self) -> None:
        while self._servers:
            behind, server = self._servers.pop()
            behind.streams.close()
            server.stop()


def _socket_name(resource: Resource) -> str:
    return f"vgpurun-{resource.name.replace('/', '-')}.sock"
