"""The DRA plugin and the node agent speak to kubelet as Kubernetes publishes it, on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from published_api import compiled
from published_dra import published_interfaces, read_interface
from test_wire import PROTO, facts
from vgpurun.kubernetes.dra.service import VERSIONS
from vgpurun.kubernetes.proto import (
    dra_health_pb2,
    dra_health_v1alpha1_pb2,
    dra_pb2,
    dra_v1beta1_pb2,
    podresources_pb2,
)

V1 = "k8s.io.kubelet.pkg.apis.dra.v1."
V1BETA1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1."
# Kubernetes 1.35's, read in its staging/src/k8s.io/kubelet/pkg/apis/dra/v1/api.proto.
SHARE_ID = f"{V1}Device.shareid = 5: optional string"
# Kubernetes 1.37's, read in its staging/src/k8s.io/kubelet/pkg/apis/dra-health/v1/api.proto.
HEALTH = {
    "/v1.DRAResourceHealth/NodeWatchResources(.v1.NodeWatchResourcesRequest) stream .v1.NodeWatchResourcesResponse",
    "message v1.NodeWatchResourcesRequest",
    "message v1.DeviceIdentifier",
    "v1.DeviceIdentifier.poolname = 1: optional string",
    "v1.DeviceIdentifier.devicename = 2: optional string",
    "message v1.DeviceHealth",
    "v1.DeviceHealth.device = 1: optional .v1.DeviceIdentifier",
    "v1.DeviceHealth.health = 2: optional .v1.HealthStatus",
    "v1.DeviceHealth.lastupdatedtime = 3: optional int64",
    "v1.DeviceHealth.healthchecktimeoutseconds = 4: optional int64",
    "v1.DeviceHealth.message = 5: optional string",
    "message v1.NodeWatchResourcesResponse",
    "v1.NodeWatchResourcesResponse.devices = 1: repeated .v1.DeviceHealth",
}


@pytest.fixture(scope="module")
def interfaces() -> Path:
    return published_interfaces()


def own(*modules: object) -> set[str]:
    found: set[str] = set()
    for module in modules:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)  # type: ignore[attr-defined]
        found |= facts(file)
    return found


def test_dra_is_the_published_interface(interfaces: Path) -> None:
    """v1 is v1beta1 under another name, with one field more; the package may be older than v1."""
    theirs = facts(read_interface(interfaces / "dra/v1beta1/api.proto"))
    assert len(theirs) > 15
    assert {line.replace(V1, V1BETA1) for line in own(dra_pb2) - {SHARE_ID}} == theirs
    services = {line.replace(V1, V1BETA1) for line in own(dra_v1beta1_pb2)}
    assert services == {line for line in theirs if line.startswith("/")}
    if (interfaces / "dra/v1").exists():
        assert own(dra_pb2) == facts(read_interface(interfaces / "dra/v1/api.proto"))


def test_health_is_the_published_interface() -> None:
    """v1 is v1alpha1 under another name."""
    assert own(dra_health_pb2) == HEALTH
    assert dict(dra_health_pb2.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}
    (service,) = own(dra_health_v1alpha1_pb2)
    assert service == next(line for line in HEALTH if line.startswith("/")).replace("/v1.", "/v1alpha1.")


def test_it_registers_what_it_serves() -> None:
    modules = (dra_pb2, dra_v1beta1_pb2, dra_health_pb2, dra_health_v1alpha1_pb2)
    served = [service.full_name for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    assert list(VERSIONS) == [name.removeprefix("k8s.io.kubelet.pkg.apis.dra.") for name in served]


def test_pod_resources_are_the_published_interface(interfaces: Path) -> None:
    theirs = facts(read_interface(interfaces / "podresources/v1/api.proto"))
    assert own(podresources_pb2) <= theirs


def test_what_was_generated_is_what_the_description_says() -> None:
    """Run `make proto` after a change."""
    for name, module in (("dra", dra_pb2), ("dra_health", dra_health_pb2)):
        assert own(module) == facts(compiled((PROTO / f"{name}.proto").read_text(), "description.proto"))
