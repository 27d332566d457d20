"""What the device plugin answers is given to real containers, as kubelet and its runtime would, and the limits hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def run(
    engine: docker.DockerClient, image: str, answers: Sequence[api.ContainerAllocateResponse], *command: str
) -> dict:
    """Run a container with what the answers describe, and return what it printed."""
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
    output = engine.containers.run(
        image,
        list(command),
        environment=variables,
        mounts=mounts,
        devices=devices,
        remove=True,
        network_mode="none",
    )
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("prefix", [(), ("/usr/bin/env", "-i")], ids=["environment", "env -i"])
def test_the_limits_of_a_pod_hold(
    node: NodeOfTest, engine: docker.DockerClient, debian: str, prefix: tuple[str, ...]
) -> None:
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    node.kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 20}})
    answers = node.kubelet.start_container("pod", "c")
    program = (*prefix, "/usr/bin/python3", GPU_PROGRAM[1])
    (device,) = run(engine, debian, answers, *program, "info")["devices"]
    assert (device["total"], device["nvml_total"]) == (GIB, GIB)
    filled = run(engine, debian, answers, *program, "fill", str(20 * MIB))
    assert filled["result"] == 2 and GIB // 4 < filled["granted_bytes"] <= GIB
    spun = run(engine, debian, answers, *program, "spin", "spin_1ms", "2")
    # 200 a second are what it may have; without a limit there would be nearly 1000.
    assert 0 < spun["launches"] / spun["seconds"] < 400


def test_two_pods_and_a_slice_have_limits_of_their_own(
    node: NodeOfTest, engine: docker.DockerClient, debian: str
) -> None:
    offer = node.folder / "offer.yaml"
    offer.write_text("slices: {small: {mem: 1536m, sm: 10}}")
    node.start_plugin("--config", str(offer))
    node.kubelet.wait_for_resources(MEMORY, COMPUTE, SLICE)
    seen = []
    for pod, resources in (("a", {MEMORY: 2, COMPUTE: 30}), ("b", {MEMORY: 4}), ("s", {SLICE: 2})):
        node.kubelet.admit(pod, {"c": resources})
        devices = run(engine, debian, node.kubelet.start_container(pod, "c"), *GPU_PROGRAM, "info")["devices"]
        seen.append([(device["total"], device["nvml_total"]) for device in devices])
    small = (1536 * MIB, 1536 * MIB)
    assert seen == [[(2 * GIB, 2 * GIB)], [(4 * GIB, 4 * GIB)], [small, small]]
