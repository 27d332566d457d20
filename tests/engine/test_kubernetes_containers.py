"""The device plugin's answers are given to real containers, as kubelet and its runtime would, and the limits hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import docker
import pytest

from cli import GPU_PROGRAM, PROGRAMS
from node_names import COMPUTE, MEMORY
from node_of_test import NodeOfTest, node_of_test
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api

GIB = 1 << 30
MIB = 1 << 20
SLICE = "vgpurun.io/slice-small"


@pytest.fixture
def node(built_library: Path, engine: docker.DockerClient) -> Iterator[NodeOfTest]:
    with node_of_test(built_library) as made:
        yield made


class Containers:
    """Makes containers of what the plugin has answered, as kubelet's runtime does."""

    def __init__(self, engine: docker.DockerClient, image: str) -> None:
        self._engine = engine
        self._image = image
        self._started: list[Any] = []

    def start(self, answers: Sequence[api.ContainerAllocateResponse], *command: str) -> Any:
        mounts = [docker.types.Mount("/programs", str(PROGRAMS), type="bind", read_only=True)]
        variables: dict[str, str] = {}
        devices = []
        for answer in answers:
            variables |= dict(answer.envs)
            devices += [f"{each.host_path}:{each.container_path}:{each.permissions}" for each in answer.devices]
            mounts += [
                docker.types.Mount(each.container_path, each.host_path, type="bind", read_only=each.read_only)
                for each in answer.mounts
            ]
        container = self._engine.containers.run(
            self._image,
            list(command),
            environment=variables,
            mounts=mounts,
            devices=devices,
            detach=True,
            network_mode="none",
        )
        self._started.append(container)
        return container

    def run(self, answers: Sequence[api.ContainerAllocateResponse], *command: str) -> Any:
        """The JSON that a program has printed."""
        container = self.start(answers, *command)
        status = container.wait(timeout=60)["StatusCode"]
        assert status == 0, container.logs()
        return json.loads(container.logs(stdout=True, stderr=False).splitlines()[-1])

    def remove(self) -> None:
        for container in self._started:
            container.remove(force=True)


@pytest.fixture
def containers(engine: docker.DockerClient, debian: str) -> Iterator[Containers]:
    made = Containers(engine, debian)
    yield made
    made.remove()


def test_the_limits_of_a_pod_hold(node: NodeOfTest, containers: Containers) -> None:
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    node.kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 20}})
    answers = node.kubelet.start_container("pod", "c")
    program = ("/usr/bin/env", "-i", "/usr/bin/python3", GPU_PROGRAM[1])
    (device,) = containers.run(answers, *program, "info")["devices"]
    assert (device["total"], device["nvml_total"]) == (GIB, GIB)
    filled = containers.run(answers, *program, "fill", str(20 * MIB))
    assert filled["result"] == 2 and GIB // 4 < filled["granted_bytes"] <= GIB


def test_two_pods_and_a_slice_have_limits_of_their_own(node: NodeOfTest, containers: Containers) -> None:
    offer = node.folder / "offer.yaml"
    offer.write_text("slices: {small: {mem: 1536m, sm: 10}}")
    node.start_plugin("--config", str(offer))
    node.kubelet.wait_for_resources(MEMORY, COMPUTE, SLICE)
    seen = []
    for pod, resources in (("a", {MEMORY: 2, COMPUTE: 30}), ("b", {MEMORY: 4}), ("s", {SLICE: 2})):
        node.kubelet.admit(pod, {"c": resources})
        devices = containers.run(node.kubelet.start_container(pod, "c"), *GPU_PROGRAM, "info")["devices"]
        seen.append([(device["total"], device["nvml_total"]) for device in devices])
    small = (1536 * MIB, 1536 * MIB)
    assert seen == [[(2 * GIB, 2 * GIB)], [(4 * GIB, 4 * GIB)], [small, small]]
