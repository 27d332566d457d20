"""The device plugin and the node agent with kubelet itself, which runs pods on a real Docker Engine.

It needs KUBELET, a kubelet's program of Kubernetes 1.20 (`tests/engine/real-kubelet FILE` builds one), and is no part
of a run of all tests without it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

import images
from cli import GPU_PROGRAM
from node_names import COMPUTE, MEMORY
from node_of_test import MACHINE
from private_engine import private_engine
from real_kubelet import NODE, RealKubelet, container, running_kubelet
from support import assert_measured, wait_until
from vgpurun.kubernetes.checkpoint import FILE_NAME, read_holdings

GIB = 1 << 30
IMAGE = "vgpurun-test/kubelet:1"
HOLD = ("sh", "-c", "python3 /programs/gpu.py info; exec sleep 1000")
AGAIN = ("sh", "-c", "python3 /programs/gpu.py info; exec sleep 5")
SPIN = ("/usr/bin/python3", GPU_PROGRAM[1], "spin", "spin_1ms", "3")
# A pod's sandbox asks for more protection from the kernel's memory killer than a root without all rights can give.
RUNTIME = """#!/bin/sh
for each in "$@"; do
  [ "$last" != --bundle ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$each/config.json"
  last=$each
done
exec runc "$@"
"""


@pytest.fixture(scope="module")
def pod_engine() -> Iterator[str]:
    if not os.environ.get("KUBELET"):
        pytest.skip("KUBELET names no kubelet; tests/engine/real-kubelet builds one")
    flags = ("--exec-opt=native.cgroupdriver=cgroupfs", "--add-runtime=pods={state}/bin/pods", "--default-runtime=pods")
    with private_engine(*flags, programs={"pods": RUNTIME}) as host:
        client = docker.DockerClient(base_url=host)
        images.debian(client, IMAGE)
        idle = client.containers.create(IMAGE, ["true"])
        idle.commit(IMAGE.partition(":")[0], "1", conf={"Cmd": ["sleep", "infinity"]})
        yield host


class Node:
    """A kubelet with the device plugin beside it."""

    def __init__(self, kubelet: RealKubelet, built_library: Path) -> None:
        self.kubelet = kubelet
        self.folder = kubelet.folder
        self._processes: list[subprocess.Popen[bytes]] = []
        (self.folder / "sim.yaml").write_text(MACHINE)
        self._environment = os.environ | {
            "VGPURUN_STATE_DIR": str(self.folder / "state"),
            "VGPURUN_LIBRARY": str(built_library),
            "VGPUSIM_CONFIG": str(self.folder / "sim.yaml"),
            "VGPUSIM_STATE": str(self.folder / "sim.state"),
            "PYTHONUNBUFFERED": "1",
        }

    def vgpurun(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / arguments[0]).open("ab") as log:
            command = [sys.executable, "-m", "vgpurun", *arguments, "--driver", "sim"]
            self._processes.append(subprocess.Popen(command, env=self._environment, stdout=log, stderr=log))
        return self._processes[-1]

    def start_plugin(self) -> None:
        with self.registration():
            self.plugin = self.vgpurun("device-plugin", "--kubelet-dir", str(self.folder / "device-plugins"))

    @contextmanager
    def registration(self) -> Iterator[None]:
        """At its end the plugin has registered anew. Before that kubelet refuses pods that need it."""
        count = self._told()
        yield
        wait_until(lambda: self._told() > count, "registration", 60)

    def kill_plugin(self) -> None:
        self.plugin.kill()
        self.plugin.wait()

    def _told(self) -> int:
        path = self.folder / "device-plugin"
        return path.read_text().count("kubelet knows") if path.exists() else 0

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def units(self, pod_containers: int) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
        """Kubelet's record, once that many containers are in it."""

        def read() -> list:
            found = read_holdings(self.folder / "device-plugins" / FILE_NAME)
            return found if len(found) == pod_containers else []

        return {(each.pod_uid, each.container): dict(each.units) for each in wait_until(read, "kubelet's record", 60)}

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def node(pod_engine: str, built_library: Path) -> Iterator[Node]:
    client = docker.DockerClient(base_url=pod_engine)
    with tempfile.TemporaryDirectory(prefix="vk-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        kubelet = RealKubelet(Path(os.environ["KUBELET"]), Path(folder), client, pod_engine, IMAGE)
        with running_kubelet(kubelet):
            made = Node(kubelet, built_library)
            try:
                made.start_plugin()
                yield made
            finally:
                made.end()
                print(made.kubelet.log()[-20_000:], made.log("device-plugin"))


def gpus(units: dict[str, frozenset[str]]) -> set[str]:
    return {each.rpartition("_")[0] for ids in units.values() for each in ids}


@pytest.mark.real_time
def test_the_limits_of_pods_hold(node: Node) -> None:
    """A pod has half of a GPU's compute and an empty environment; another has no limit, on the other GPU."""

    tries = itertools.count()

    def share() -> float:
        pods = [f"{name}{next(tries)}" for name in ("half", "alone")]
        node.kubelet.add(pods[0], container("main", {MEMORY: 2, COMPUTE: 50}, "env", "-i", *SPIN))
        node.kubelet.add(pods[1], container("main", {MEMORY: 3}, *SPIN))
        half, alone = map(node.kubelet.answer, pods)
        assert len(set.union(*map(gpus, node.units(2).values()))) == 2
        for pod in pods:
            node.kubelet.remove(pod)
        return (half["launches"] / half["seconds"]) / (alone["launches"] / alone["seconds"])

    assert_measured(share, lambda share: abs(share - 0.5) < 0.06)


def test_containers_of_a_pod_have_limits_of_their_own(node: Node) -> None:
    """The init container's units go to the first one after it, as kubelet has it."""
    node.kubelet.add(
        "pod",
        container("small", {MEMORY: 1, COMPUTE: 10}, *HOLD),
        container("large", {MEMORY: 3, COMPUTE: 60}, *HOLD),
        first=[container("prepare", {MEMORY: 4, COMPUTE: 20}, *GPU_PROGRAM, "info")],
    )
    for name, gib in (("prepare", 4), ("small", 1), ("large", 3)):
        assert memory(node.kubelet.answer("pod", name)) == gib * GIB
    assert all(len(gpus(units)) == 1 for units in node.units(3).values())


def test_what_cannot_be_never_starts(node: Node) -> None:
    node.kubelet.add("lone", container("main", {COMPUTE: 30}, *HOLD))
    wait_until(
        lambda: "compute alone, which gives it no GPU; ask for alnair/vgpu-memory too" in node.kubelet.log(), "no"
    )
    node.kubelet.add("big", container("main", {MEMORY: 9}, *HOLD))  # more than any single GPU has
    node.kubelet.add("after", container("main", {MEMORY: 8}, *HOLD))
    assert memory(node.kubelet.answer("after")) == 8 * GIB
    assert node.kubelet.containers("lone") == node.kubelet.containers("big") == []


def test_it_goes_on_after_the_end_of_plugin_or_kubelet(node: Node) -> None:
    """A container that ends is started again, with its limits; what others have is not given."""
    node.kubelet.add("again", container("main", {MEMORY: 5, COMPUTE: 70}, *AGAIN))
    before = node.kubelet.answer("again")
    node.kill_plugin()
    node.start_plugin()
    assert node.kubelet.answer("again", start=1) == before
    with node.registration():
        node.kubelet.stop()
        node.kubelet.start()
    node.kubelet.add("next", container("main", {MEMORY: 5, COMPUTE: 70}, *HOLD))
    assert memory(node.kubelet.answer("next")) == 5 * GIB
    units = node.units(2).values()
    assert [len(gpus(each)) for each in units] == [1, 1] and len(set.union(*map(gpus, units))) == 2


def test_many_pods_share_the_gpus_and_none_is_reserved_twice(node: Node) -> None:
    for number in range(20):
        node.kubelet.add(f"pod{number}", container("main", {MEMORY: 1, COMPUTE: 12}, *HOLD))
    for units in node.units(16).values():  # eight on each GPU: for the ninth there is too little compute
        assert len(gpus(units)) == 1
    names = [f"pod{number}" for number in range(20)]
    wait_until(lambda: sum(bool(node.kubelet.containers(name)) for name in names) == 16, "16 pods", 80)
    assert {memory(node.kubelet.answer(name)) for name in names if node.kubelet.containers(name)} == {GIB}


def test_the_agent_names_pods_and_removes_what_they_leave(node: Node) -> None:
    node.kubelet.add("alice", container("main", {MEMORY: 2}, *HOLD))
    node.kubelet.answer("alice")
    node.vgpurun("node-agent", "--kubelet-dir", str(node.folder), "--interval", "0.5", "--listen", "127.0.0.1:0")
    url = next(each for each in wait_until(lambda: node.log("node-agent").split(), "URL") if each.startswith("http"))
    metrics = urllib.request.urlopen(url, timeout=20).read().decode()
    limit = next(line for line in metrics.splitlines() if line.startswith("vgpurun_container_memory_limit_bytes{"))
    assert float(limit.split()[-1]) == 2 * GIB
    assert f'namespace="lab",pod="alice-{NODE}"' in limit
    (left,) = (node.folder / "state/kubernetes").glob("units-*")
    node.kubelet.remove("alice")
    node.kubelet.add("bob", container("main", {MEMORY: 7}, *HOLD))
    node.kubelet.answer("bob")
    wait_until(lambda: not left.exists(), "removal of what alice has left", 60)


def memory(answer: dict) -> int:
    (device,) = answer["devices"]
    assert device["nvml_total"] == device["total"]
    return int(device["total"])
