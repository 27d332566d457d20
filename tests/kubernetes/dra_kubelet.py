"""kubelet, as far as a DRA plugin meets it: finds plugins in its registry, and has claims prepared over their sockets.

It goes by kubelet's own rules: a socket in plugins_registry is asked what it is, is told whether it is taken, and is
called at its endpoint by the first version that both speak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from api_server import ApiServer
from vgpurun.kubernetes.proto import dra_health_pb2, dra_pb2, pluginregistration_pb2

TIMEOUT_S = 45  # kubelet's
# Kubelet's name for a version when a plugin registers, and the service that it then calls. Newest first.
HEALTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
SPOKEN = {
    "1.34": {
        "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
    },
    "1.33": {"v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"},
}


class DraKubelet:
    """A kubelet of a Kubernetes version, with its folder."""

    def __init__(self, folder: Path, version: str = "1.34") -> None:
        self.folder = folder
        self._spoken = SPOKEN[version]

    def start(self, server: ApiServer, node: str) -> None:
        """Do what kubelet does first: no plugin has registered, so none of the node's devices can be had."""
        server.delete_slices(node)

    def registered(self) -> dict[str, tuple[str, str]]:
        """Look at the registry: each driver by its name, with its endpoint and the service to call there."""
        found = {}
        registry = self.folder / "plugins_registry"
        for path in sorted(registry.iterdir()) if registry.exists() else []:
            if path.name.startswith(".") or not path.is_socket():
                continue
            info = _call(path, "pluginregistration.Registration/GetInfo", Empty(), pluginregistration_pb2.PluginInfo)
            service = next((self._spoken[each] for each in self._spoken if each in info.supported_versions), None)
            is_taken = info.type == "DRAPlugin" and service is not None and Path(info.endpoint).is_socket()
            status = pluginregistration_pb2.RegistrationStatus(
                plugin_registered=is_taken, error="" if is_taken else "no"
            )
            _call(path, "pluginregistration.Registration/NotifyRegistrationStatus", status, Empty)
            if is_taken:
                found[info.name] = (info.endpoint, str(service))
        return found

    @contextmanager
    def plugin(self, name: str) -> Iterator[DraPlugin]:
        """The driver of that name, which must have registered."""
        endpoint, service = self.registered()[name]
        with grpc.insecure_channel(f"unix:{endpoint}") as channel:
            yield DraPlugin(channel, service)


class DraPlugin:
    """Calls a plugin. Claims are objects as the API server has them."""

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        self._channel = channel
        self._service = service

    def prepare(
        self, *claims: dict[str, Any], timeout_s: float = TIMEOUT_S
    ) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        """The answers by UID: one for each claim, or kubelet would ask again."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=map(_claim, claims))
        response = self._ask("NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse, timeout_s)
        assert set(response.claims) == {each["metadata"]["uid"] for each in claims}
        for answer in response.claims.values():
            assert answer.error or all(each.pool_name and each.device_name for each in answer.devices)
        return dict(response.claims)

    def unprepare(self, *claims: dict[str, Any]) -> dict[str, str]:
        """The errors by UID: one for each claim, empty where all went well."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=map(_claim, claims))
        response = self._ask("NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse)
        assert set(response.claims) == {each["metadata"]["uid"] for each in claims}
        return {uid: answer.error for uid, answer in response.claims.items()}

    @contextmanager
    def health(self, service: str) -> Iterator[Iterator[dict[str, tuple[str, str]]]]:
        """The health of all devices as kubelet hears of it: (status, message) by the device's name, for each update."""
        watch = self._channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=Empty.SerializeToString,
            response_deserializer=dra_health_pb2.NodeWatchResourcesResponse.FromString,
        )
        stream = watch(Empty(), timeout=60)
        try:
            yield (
                {
                    each.device.device_name: (dra_health_pb2.HealthStatus.Name(each.health), each.message)
                    for each in update.devices
                }
                for update in stream
            )
        finally:
            stream.cancel()

    def _ask(self, method: str, request: Any, answer: Any, timeout_s: float = TIMEOUT_S) -> Any:
        return _unary(self._channel, f"{self._service}/{method}", request, answer, timeout_s)


def _claim(made: dict[str, Any]) -> dra_pb2.Claim:
    metadata = made["metadata"]
    return dra_pb2.Claim(namespace=metadata["namespace"], uid=metadata["uid"], name=metadata["name"])


def _call(path: Path, method: str, request: Any, answer: Any) -> Any:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        return _unary(channel, method, request, answer)


def _unary(channel: grpc.Channel, method: str, request: Any, answer: Any, timeout_s: float = TIMEOUT_S) -> Any:
    call = channel.unary_unary(
        f"/{method}", request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
    )
    return call(request, timeout=timeout_s, wait_for_ready=True)
