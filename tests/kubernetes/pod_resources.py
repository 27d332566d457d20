"""kubelet's pod-resources API at its socket, with what a test says that containers have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vgpurun.kubernetes.proto import podresources_pb2 as api
from vgpurun.kubernetes.rpc import Server


class PodResources:
    """Pods by (namespace, name): containers by name, with their units by resource and their claims by name."""

    def __init__(self, kubelet: Path) -> None:
        self.socket = kubelet / "pod-resources" / "kubelet.sock"
        self.pods: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}

    def list(self, *_: Any) -> api.ListPodResourcesResponse:
        pods = [
            api.PodResources(
                namespace=namespace, name=name, containers=[self._container(namespace, *each) for each in boxes.items()]
            )
            for (namespace, name), boxes in self.pods.items()
        ]
        return api.ListPodResourcesResponse(pod_resources=pods)

    def _container(self, namespace: str, name: str, has: dict[str, Any]) -> api.ContainerResources:
        return api.ContainerResources(
            name=name,
            devices=[
                api.ContainerDevices(resource_name=resource, device_ids=units)
                for resource, units in has.get("units", {}).items()
            ],
            dynamic_resources=[
                api.DynamicResource(claim_namespace=namespace, claim_name=each) for each in has.get("claims", ())
            ],
        )

    @contextmanager
    def running(self) -> Iterator[PodResources]:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        server = Server(self.socket, (api.DESCRIPTOR.services_by_name["PodResourcesLister"], self))
        try:
            yield self
        finally:
            server.stop(0)
