"""Claims that the DRA plugin has prepared are given to real containers by their CDI names, and the limits hold."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from api_server import ApiServer
from claim_maker import result
from cli import GPU_PROGRAM, PROGRAMS, wait_until
from dra_host import DRIVER, PluginHost
from in_step import rates
from support import assert_measured, short_folder
from vgpurun.kubernetes.proto import dra_pb2

GIB = 1 << 30
MIB = 1 << 20
CHUNK = 20 * MIB
OUT_OF_MEMORY = 2
MEMBER = (*GPU_PROGRAM, "member", "/steps")


class Pods:
    """Starts containers with claims, as kubelet and its runtime do."""

    def __init__(self, host: PluginHost, engine: docker.DockerClient, image: str) -> None:
        self.host = host
        self._engine = engine
        self._image = image
        self._started: list[Any] = []

    def prepare(self, *results: dict[str, Any], name: str) -> list[str]:
        """The CDI names of a new claim's devices."""
        made = self.host.add(*results, name=name)
        with self.host.kubelet.plugin(DRIVER) as plugin:
            answer: dra_pb2.NodePrepareResourceResponse = plugin.prepare(made)[made["metadata"]["uid"]]
        assert not answer.error, answer.error
        return [each for device in answer.devices for each in device.cdi_device_ids]

    def start(self, cdi_names: list[str], *command: str, steps: Path | None = None) -> Any:
        """`steps` is where a container that goes on together with others is told so (in_step.py)."""
        container = self._engine.containers.run(
            self._image,
            list(command),
            detach=True,
            stdin_open=True,
            network_mode="none",
            volumes=[f"{PROGRAMS}:/programs:ro", *([f"{steps}:/steps"] if steps else [])],
            device_requests=[docker.types.DeviceRequest(driver="cdi", device_ids=cdi_names)],
        )
        self._started.append(container)
        return container

    def run(self, cdi_names: list[str], *command: str) -> Any:
        """The JSON that a program has printed."""
        container = self.start(cdi_names, *command)
        status = container.wait(timeout=60)["StatusCode"]
        output = container.logs(stdout=True, stderr=False)
        assert status == 0, container.logs()
        return json.loads(output.splitlines()[-1])

    def remove(self) -> None:
        for container in self._started:
            container.remove(force=True)


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


@pytest.mark.parametrize("prefix", [(), ("env", "-i")], ids=["as it is", "env -i"])
def test_two_claims_on_one_gpu_have_limits_of_their_own(pods: Pods, prefix: tuple[str, ...]) -> None:
    device, _ = pods.host.devices()
    small = pods.prepare(result(device, "1Gi", "30"), name="small")
    large = pods.prepare(result(device, "3Gi", "60"), name="large")
    holder = pods.start(large, *prefix, *GPU_PROGRAM, "hold", str(GIB))
    wait_until(lambda: b"holding" in holder.logs(), "memory that is held")
    for names, size_bytes in ((small, GIB), (large, 3 * GIB)):
        (seen,) = pods.run(names, *prefix, *GPU_PROGRAM, "info")["devices"]
        assert (seen["total"], seen["nvml_total"]) == (size_bytes, size_bytes)
    filled = pods.run(small, *prefix, *GPU_PROGRAM, "fill", str(CHUNK))
    assert filled["result"] == OUT_OF_MEMORY
    assert 400 * MIB < filled["granted_bytes"] < GIB


@pytest.mark.exhaustive  # test_run_limits.py has this for any container
@pytest.mark.real_time
def test_the_compute_of_claims_is_what_they_say(pods: Pods, tmp_path: Path) -> None:
    """Two claims on the one GPU, beside one without a compute limit on the other."""
    first, second = pods.host.devices()
    claims = [
        pods.prepare(result(first, "2Gi", "30"), name="small"),
        pods.prepare(result(first, "2Gi", "60"), name="large"),
        pods.prepare(result(second, "2Gi"), name="unlimited"),
    ]

    def shares() -> tuple[float, float]:
        steps = Path(tempfile.mkdtemp(dir=tmp_path))
        small, large, unlimited = rates(steps, [pods.start(each, *MEMBER, steps=steps) for each in claims])
        return small / unlimited, large / unlimited

    assert_measured(shares, lambda seen: abs(seen[0] - 0.3) < 0.06 and abs(seen[1] - 0.6) < 0.06)


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
