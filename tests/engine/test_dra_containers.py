"""Claims that the DRA plugin has prepared are given to real containers by their CDI names, and the limits hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from api_server import ApiServer
from claim_maker import result
from cli import GPU_PROGRAM, PROGRAMS
from dra_host import DRIVER, PluginHost
from support import CHECKOUT, short_folder, wait_until
from vgpurun.host.mps import CONTROL
from vgpurun.kubernetes.proto import dra_pb2
from vgpurun.together import server
from vgpurun.together.group import PIPES

GIB = 1 << 30
MIB = 1 << 20
CHUNK = 20 * MIB
OUT_OF_MEMORY = 2


class Pods:
    """Starts containers with claims, as kubelet and its runtime do."""

    def __init__(self, host: PluginHost, engine: docker.DockerClient, image: str) -> None:
        self.host = host
        self._engine = engine
        self._image = image
        self._started: list[Any] = []

    def prepare(self, *results: dict[str, Any], name: str, **parameters: Any) -> list[str]:
        """The CDI names of a new claim's devices."""
        made = self.host.add(*results, name=name, **parameters)
        with self.host.kubelet.plugin(DRIVER) as plugin:
            answer: dra_pb2.NodePrepareResourceResponse = plugin.prepare(made)[made["metadata"]["uid"]]
        assert not answer.error, answer.error
        return [each for device in answer.devices for each in device.cdi_device_ids]

    def start(self, cdi_names: list[str], *command: str, **options: Any) -> Any:
        container = self._engine.containers.run(
            self._image,
            list(command),
            detach=True,
            stdin_open=True,
            network_mode="none",
            volumes=[f"{PROGRAMS}:/programs:ro"],
            device_requests=[docker.types.DeviceRequest(driver="cdi", device_ids=cdi_names)],
            **options,
        )
        self._started.append(container)
        return container

    def run(self, cdi_names: list[str], *command: str, **options: Any) -> Any:
        """The JSON that a program has printed."""
        container = self.start(cdi_names, *command, **options)
        status = container.wait(timeout=60)["StatusCode"]
        output = container.logs(stdout=True, stderr=False)
        assert status == 0, container.logs()
        return json.loads(output.splitlines()[-1])

    def remove(self) -> None:
        while self._started:
            self._started.pop().remove(force=True)

    def groups(self) -> list[Path]:
        """The folders of what works at the same time."""
        return sorted((self.host.folder / "state/together").glob("[!.]*"))


@pytest.fixture(scope="module")
def host(built_library: Path) -> Iterator[PluginHost]:
    if os.geteuid() != 0:
        pytest.skip("only root can write a CDI specification where the engine looks")
    with ApiServer().running() as server, short_folder("dra-") as folder:
        folder.chmod(0o755)
        host = PluginHost(folder, server, cdi=Path("/var/run/cdi"))
        with host.running():
            yield host
            with host.kubelet.plugin(DRIVER) as plugin:
                plugin.unprepare(*server.claims.values())


@pytest.fixture
def pods(host: PluginHost, engine: docker.DockerClient, debian: str) -> Iterator[Pods]:
    pods = Pods(host, engine, debian)
    yield pods
    pods.remove()
    with host.kubelet.plugin(DRIVER) as plugin:
        plugin.unprepare(*host.server.claims.values())


def test_two_claims_on_one_gpu_have_limits_of_their_own(pods: Pods) -> None:
    prefix = ("env", "-i", "/usr/bin/python3", *GPU_PROGRAM[1:])
    device, _ = pods.host.devices()
    small = pods.prepare(result(device, "1Gi", "30"), name="small")
    large = pods.prepare(result(device, "3Gi", "60"), name="large")
    holder = pods.start(large, *prefix, "hold", str(GIB))
    wait_until(lambda: b"holding" in holder.logs(), "memory that is held")
    for names, size_bytes in ((small, GIB), (large, 3 * GIB)):
        (seen,) = pods.run(names, *prefix, "info")["devices"]
        assert (seen["total"], seen["nvml_total"]) == (size_bytes, size_bytes)
    filled = pods.run(small, *prefix, "fill", str(CHUNK))
    assert filled["result"] == OUT_OF_MEMORY
    assert 400 * MIB < filled["granted_bytes"] < GIB


def test_containers_of_one_claim_share_its_memory(pods: Pods) -> None:
    device, _ = pods.host.devices()
    names = pods.prepare(result(device, "3Gi"), name="team")
    alone = pods.run(names, *GPU_PROGRAM, "fill", str(CHUNK))["granted_bytes"]
    holder = pods.start(names, *GPU_PROGRAM, "hold", str(GIB))
    wait_until(lambda: b"holding" in holder.logs(), "memory that is held")
    beside = pods.run(names, *GPU_PROGRAM, "fill", str(CHUNK))["granted_bytes"]
    assert 0 < beside <= alone - GIB


def test_a_claim_of_two_gpus_has_a_limit_on_each(pods: Pods) -> None:
    first, second = pods.host.devices()
    names = pods.prepare(result(first, "1Gi"), result(second, "2Gi"), result(second, "1Gi", request="b"), name="two")
    seen = pods.run(names, *GPU_PROGRAM, "info")["devices"]
    assert [each["total"] for each in seen] == [GIB, 3 * GIB]


def test_what_was_given_back_cannot_be_started(pods: Pods) -> None:
    device, _ = pods.host.devices()
    names = pods.prepare(result(device, "1Gi"), name="over")
    with pods.host.kubelet.plugin(DRIVER) as plugin:
        plugin.unprepare(*pods.host.server.claims.values())
    with pytest.raises(docker.errors.APIError, match="unresolvable CDI devices"):
        pods.start(names, "true")


# All that follows works on the GPU at the same time, by MPS.

IPC = {"ipc_mode": "host"}


def hold(pods: Pods, names: list[str], size_bytes: int) -> None:
    """Start a container whose program has memory."""
    holder = pods.start(names, *GPU_PROGRAM, "hold", str(size_bytes), **IPC)
    wait_until(lambda: b"holding" in holder.logs() or b"Error" in holder.logs(), "the program's word")
    assert b"holding" in holder.logs(), holder.logs()


def daemons(group: Path) -> list[int]:
    return [each.pid for each in server.processes(group / PIPES)]


def clients(group: Path) -> int:
    """How many programs are in the server."""
    serving = json.loads((group / "keeper").read_text())["server"]
    control = CHECKOUT / "lib/build/sim" / CONTROL
    return len((server.ask(control, group / PIPES, f"get_client_list {serving}") or "").split()) if serving else 0


def give_back(pods: Pods, name: str) -> str:
    """The error of giving a claim back, or nothing."""
    made = next(each for each in pods.host.server.claims.values() if each["metadata"]["name"] == name)
    with pods.host.kubelet.plugin(DRIVER) as plugin:
        return plugin.unprepare(made)[made["metadata"]["uid"]]


def test_containers_of_one_claim_work_at_the_same_time_in_its_limits(pods: Pods) -> None:
    device, _ = pods.host.devices()
    names = pods.prepare(result(device, "4Gi", "50"), name="team", together=True)
    (group,) = pods.groups()
    other = pods.prepare(result(device, "2Gi"), name="other", together=True)
    alone = pods.run(names, *GPU_PROGRAM, "fill", str(CHUNK), **IPC)["granted_bytes"]
    for _ in range(2):
        hold(pods, names, GIB)
    wait_until(lambda: clients(group) == 2, "both in one server")
    beside = pods.run(names, *GPU_PROGRAM, "fill", str(CHUNK), **IPC)
    assert beside["result"] == OUT_OF_MEMORY and 0 < beside["granted_bytes"] <= alone - 2 * GIB
    hold(pods, other, GIB)
    (its_own,) = [each for each in pods.groups() if each != group]
    wait_until(lambda: clients(its_own) == 1, "another claim's program in a server of its own")
    assert clients(group) == 2 and not {*daemons(group)} & {*daemons(its_own)}
    pods.remove()
    assert [give_back(pods, name) for name in ("team", "other")] == ["", ""]
    assert not pods.groups() and not daemons(group) and not daemons(its_own)


def test_a_claim_in_whose_server_programs_are_is_given_back_once_they_have_ended(pods: Pods) -> None:
    device, _ = pods.host.devices()
    names = pods.prepare(result(device, "1Gi"), name="busy", together=True)
    hold(pods, names, 100 * MIB)
    (group,) = pods.groups()
    assert "lab/busy: its MPS server has not ended: containers are in it still" in give_back(pods, "busy")
    assert daemons(group) and list(pods.host.claims.glob("[!.]*")), "another claim could have its folder's inode"
    pods.remove()
    assert give_back(pods, "busy") == ""
    assert not pods.groups() and not daemons(group) and not list(pods.host.claims.glob("[!.]*"))


def test_a_container_of_another_user_does_not_start(pods: Pods) -> None:
    """test_together_cdi.py has what else cannot join, by the hook that slices have too."""
    device, _ = pods.host.devices()
    names = pods.prepare(result(device, "1Gi"), name="share", together=True)
    words = "would be user 1000's, and the MPS server of claim lab/share is for user root;.*Kubernetes: runAsUser: 0"
    with pytest.raises(docker.errors.APIError, match=words):
        pods.start(names, "true", **IPC, user="1000")
    (group,) = pods.groups()
    assert not daemons(group)
    assert give_back(pods, "share") == "" and not pods.groups()
