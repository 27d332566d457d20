"""Which container of a pod has which units and claims: kubelet's own word for it, by its pod-resources API."""

from pathlib import Path
from typing import NamedTuple

import grpc

from vgpurun.errors import KubernetesError
from vgpurun.kubernetes.proto import podresources_pb2
from vgpurun.kubernetes.rpc import client

_SERVICE = podresources_pb2.DESCRIPTOR.services_by_name["PodResourcesLister"]


class PodContainer(NamedTuple):
    """A container of a pod on this node. `units` are (resource, id), `claims` are (namespace, name)."""

    namespace: str
    pod: str
    name: str
    units: frozenset[tuple[str, str]]
    claims: frozenset[tuple[str, str]]


def read_containers(socket: Path) -> list[PodContainer]:
    """Return the containers of all pods that kubelet has admitted, started or not. Raises KubernetesError."""
    if not socket.is_socket():
        raise KubernetesError(f"kubelet's socket {socket} is not there; is --kubelet-dir kubelet's folder?")
    try:
        with client(socket, _SERVICE) as lister:
            response = lister.list(podresources_pb2.ListPodResourcesRequest())
    except grpc.RpcError as error:
        raise KubernetesError(f"kubelet does not answer at {socket}: {error.details() or error.code()}") from None
    return [_container(pod, each) for pod in response.pod_resources for each in pod.containers]


def _container(pod: podresources_pb2.PodResources, container: podresources_pb2.ContainerResources) -> PodContainer:
    return PodContainer(
        namespace=pod.namespace,
        pod=pod.name,
        name=container.name,
        units=frozenset((each.resource_name, unit) for each in container.devices for unit in each.device_ids),
        claims=frozenset((each.claim_namespace, each.claim_name) for each in container.dynamic_resources),
    )
