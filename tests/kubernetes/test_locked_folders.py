"""A process that holds the lock of the state folders: kubelet is told so in time, and all goes on once it is dead."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from claim_maker import claim, result
from claim_node import GPUS, ClaimNode, OneClaim, named
from support.lock_holder import held_by_process
from vgpurun.errors import StateError
from vgpurun.host.drivers import DriverPlan
from vgpurun.kubernetes import locks, rpc, state
from vgpurun.kubernetes.device_plugin.node import Node
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources
from vgpurun.kubernetes.device_plugin.service import ResourceServer
from vgpurun.kubernetes.device_plugin.units import resources_of
from vgpurun.kubernetes.dra.service import DraService
from vgpurun.kubernetes.gpu_health import Health
from vgpurun.kubernetes.proto import deviceplugin_pb2, dra_pb2

PLUGIN = deviceplugin_pb2.DESCRIPTOR.services_by_name["DevicePlugin"]


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.3)


def test_units_are_refused_and_given_once_the_holder_is_dead(tmp_path: Path) -> None:
    resources = resources_of(OfferedResources(), GPUS)
    node = Node(GPUS, resources, Health(), tmp_path, tmp_path / "record", tmp_path / "lib.so", lambda _: DriverPlan(""))
    one = deviceplugin_pb2.ContainerAllocateRequest(devices_ids=[f"{GPUS[0].uuid}_0"])
    request = deviceplugin_pb2.AllocateRequest(container_requests=[one])
    with state.alone(tmp_path):
        pass
    server = rpc.Server(tmp_path / "sock", (PLUGIN, ResourceServer(node, resources[0], {})))
    with rpc.client(tmp_path / "sock", PLUGIN) as plugin:
        with held_by_process(tmp_path / "kubernetes" / ".lock") as holder:
            with pytest.raises(grpc.RpcError) as refused:
                plugin.allocate(request)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            details = refused.value.details()
            assert details.startswith(f"vgpurun: {tmp_path}/kubernetes/.lock has not been free for 0 s")
            assert f"held by process {holder.pid} of user" in details
        (given,) = plugin.allocate(request).container_responses
        assert given.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(1 << 30)
    server.stop()


def test_a_claim_is_refused_and_prepared_once_the_holder_is_dead(tmp_path: Path) -> None:
    made = claim(result(GPUS[0]))
    node = ClaimNode(tmp_path, OneClaim(made))
    service = DraService(node.driver(), node.lines.append)
    name, waiting = named(made), SimpleNamespace(is_active=lambda: True)
    asked = [dra_pb2.Claim(uid=name.uid, namespace=name.namespace, name=name.name)]
    prepare = dra_pb2.NodePrepareResourcesRequest(claims=asked)
    unprepare = dra_pb2.NodeUnprepareResourcesRequest(claims=asked)
    node.claims.clean()  # makes the folder
    with held_by_process(node.root / "claims" / ".lock") as holder:
        for answer in (
            service.node_prepare_resources(prepare, waiting),
            service.node_unprepare_resources(unprepare, waiting),
        ):
            error = answer.claims[name.uid].error
            assert error.startswith(f"vgpurun: {node.root}/claims/.lock has not been free for 0 s")
            assert f"held by process {holder.pid} of user" in error
        with pytest.raises(StateError, match="end that, or try again"):
            node.driver().resume()  # so the plugin ends, with 125, and is started again
    answer = service.node_prepare_resources(prepare, waiting).claims[name.uid]
    assert not answer.error and len(answer.devices) == 1
    assert not service.node_unprepare_resources(unprepare, waiting).claims[name.uid].error
    assert node.left() == set()
