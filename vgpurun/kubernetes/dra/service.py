"""The DRA plugin as kubelet talks to it: kubelet's messages on one side, dra_driver.py on the other."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vgpurun.errors import KubernetesError, VgpurunError
from vgpurun.kubernetes.dra import health as dra_health
from vgpurun.kubernetes.dra.claim import ClaimName
from vgpurun.kubernetes.dra.driver import Driver, PreparedDevice, each_on_its_own
from vgpurun.kubernetes.dra.model import DRIVER
from vgpurun.kubernetes.proto import (
    dra_health_pb2,
    dra_health_v1alpha1_pb2,
    dra_pb2,
    dra_v1beta1_pb2,
    pluginregistration_pb2,
)
from vgpurun.kubernetes.rpc import Server

# The names that kubelet knows: of each kind it takes the first that it speaks.
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *dra_health.VERSIONS)
_PLUGIN_TYPE = "DRAPlugin"
_PLUGIN = [each.DESCRIPTOR.services_by_name["DRAPlugin"] for each in (dra_pb2, dra_v1beta1_pb2)]
_HEALTH = [each.DESCRIPTOR.services_by_name["DRAResourceHealth"] for each in (dra_health_pb2, dra_health_v1alpha1_pb2)]


class DraService:
    """NodePrepareResources and NodeUnprepareResources."""

    def __init__(self, driver: Driver, say: Callable[[str], None]) -> None:
        self._driver = driver
        self._say = say

    def node_prepare_resources(self, request: dra_pb2.NodePrepareResourcesRequest, context: Any) -> Any:
        """Prepare claims; the answer has one entry for each, with its devices or its error."""
        answers = each_on_its_own(_claims(request.claims), lambda claim: self._driver.prepare(claim, context.is_active))
        response = dra_pb2.NodePrepareResourcesResponse()
        for uid, answer in answers.items():
            entry = response.claims[uid]
            if isinstance(answer, VgpurunError):
                entry.error = self._said(answer)
            else:
                entry.devices.extend(map(_device, answer))
        return response

    def node_unprepare_resources(self, request: dra_pb2.NodeUnprepareResourcesRequest, context: Any) -> Any:
        """Give claims back; the answer has one entry for each."""
        del context
        answers = each_on_its_own(_claims(request.claims), self._driver.unprepare)
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for uid, answer in answers.items():
            response.claims[uid].error = self._said(answer) if isinstance(answer, VgpurunError) else ""
        return response

    def _said(self, error: VgpurunError) -> str:
        self._say(str(error))
        return f"vgpurun: {error}"


class Registrar:
    """Tells kubelet what is at the plugin's socket, and hears whether kubelet takes it."""

    def __init__(self, endpoint: Path, say: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._say = say
        self.is_registered = False

    def get_info(self, request: Any, context: Any) -> Any:
        """Return the driver's name, its socket and the versions that it speaks."""
        del request, context
        return pluginregistration_pb2.PluginInfo(
            type=_PLUGIN_TYPE, name=DRIVER, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    def notify_registration_status(self, request: pluginregistration_pb2.RegistrationStatus, context: Any) -> Any:
        """Hear how the registration went; kubelet tries again by itself."""
        del context
        self.is_registered = request.plugin_registered
        self._say("registered with kubelet" if self.is_registered else f"kubelet refuses: {request.error}")
        return pluginregistration_pb2.RegistrationStatusResponse()


class Sockets:
    """The plugin's two sockets in kubelet's folder."""

    def __init__(
        self,
        kubelet: Path,
        service: DraService,
        make_health: Callable[[], dra_health.HealthService],
        say: Callable[[str], None],
    ) -> None:
        self.plugin_folder = kubelet / "plugins" / DRIVER
        self._registry = kubelet / "plugins_registry"
        self._service = service
        self._make_health = make_health
        self._health: dra_health.HealthService | None = None
        self._say = say
        self.registrar = Registrar(self.plugin_folder / "dra.sock", say)
        self._servers: list[Server] = []

    def open(self) -> None:
        """Serve: the plugin first, since kubelet turns to it as soon as the registrar has answered.

        Raises KubernetesError.
        """
        try:
            self.plugin_folder.mkdir(parents=True, exist_ok=True)
            self._registry.mkdir(exist_ok=True)
        except OSError as error:
            raise KubernetesError(f"{error.filename}: {error.strerror}; is --kubelet-dir kubelet's folder?") from None
        self._health = self._make_health()
        services = [*((each, self._service) for each in _PLUGIN), *((each, self._health) for each in _HEALTH)]
        self._servers.append(Server(self.plugin_folder / "dra.sock", *services))
        registration = pluginregistration_pb2.DESCRIPTOR.services_by_name["Registration"]
        self._servers.append(Server(self._registry / f"{DRIVER}-reg.sock", (registration, self.registrar)))

    def reopen_if_gone(self) -> None:
        """Serve anew where somebody has removed a socket. Raises KubernetesError."""
        if not all(server.is_reachable for server in self._servers):
            self._say("a socket has gone: it is made anew")
            self.close()
            self.open()

    def close(self) -> None:
        """Stop serving, the registrar first."""
        if self._health:
            self._health.streams.close()
        while self._servers:
            self._servers.pop().stop()
        self.registrar.is_registered = False


def _claims(claims: Iterable[dra_pb2.Claim]) -> list[ClaimName]:
    return [ClaimName(each.uid, each.namespace, each.name) for each in claims]


def _device(prepared: PreparedDevice) -> dra_pb2.Device:
    return dra_pb2.Device(
        request_names=[prepared.part.request],
        pool_name=prepared.part.pool,
        device_name=prepared.part.device,
        share_id=prepared.part.share_id or None,
        cdi_device_ids=[prepared.cdi_name],
    )
