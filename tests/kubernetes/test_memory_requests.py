"""The DaemonSets request the memory that their containers take, so that a node is not promised more than it has."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from api_server import ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost
from node_names import COMPUTE, MEMORY
from node_of_test import NodeOfTest
from pod_resources import PodResources
from support import CHECKOUT, short_folder, wait_until

FOLDER = CHECKOUT / "examples" / "kubernetes"


def assert_requested(pid: int, way: str, name: str) -> None:
    """A process took what its container requests at most, and not much less."""
    (daemon_set,) = yaml.safe_load_all((FOLDER / way / "daemonset.yaml").read_text())
    containers = {each["name"]: each for each in daemon_set["spec"]["template"]["spec"]["containers"]}
    requested_bytes = int(parse_quantity(containers[name]["resources"]["requests"]["memory"]))
    status = Path(f"/proc/{pid}/status").read_text()
    peak_bytes = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
    assert requested_bytes / 2 < peak_bytes <= requested_bytes, f"{peak_bytes / 2**20:.1f} MiB"


def test_the_dra_plugin(server: ApiServer, built_library: Path) -> None:
    with short_folder("dra-") as folder:
        host = PluginHost(folder, server)
        with host.running() as process, host.kubelet.plugin(DRIVER) as plugin:
            made = [host.add(result(host.devices()[0], "64Mi"), name=f"claim-{i}") for i in range(40)]
            assert not any(each.error for each in plugin.prepare(*made).values())
            assert_requested(process.pid, "dra", "plugin")


def test_the_device_plugin(node: NodeOfTest) -> None:
    process = node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    for i in range(16):
        node.kubelet.admit(f"pod-{i}", {"c": {MEMORY: 1, COMPUTE: 5}})
        node.kubelet.start_container(f"pod-{i}", "c")
    assert_requested(process.pid, "device-plugin", "plugin")


@contextmanager
def agent(node: NodeOfTest) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    log = node.folder / "agent"
    command = [sys.executable, "-m", "vgpurun", "node-agent", "--driver", "sim", "--listen", "127.0.0.1:0"]
    with log.open("wb") as output:
        command += ["--kubelet-dir", str(node.kubelet.folder.parent), "--interval", "0.2"]
        process = subprocess.Popen(command, env=node.environment, stdout=output, stderr=output)
    try:
        yield process, wait_until(lambda: next(iter(re.findall(r"http\S+", log.read_text())), None), "URL")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("way", ["dra", "device-plugin"])
def test_the_node_agent(node: NodeOfTest, way: str) -> None:
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    pods = PodResources(node.kubelet.folder.parent)
    with pods.running(), agent(node) as (process, url):
        for i in range(16):
            node.kubelet.admit(f"pod-{i}", {"c": {MEMORY: 1, COMPUTE: 5}})
            units = {name: given.ids for name, given in node.kubelet.containers[f"pod-{i}", "c"].items()}
            pods.pods["lab", f"pod-{i}"] = {"c": {"units": units}}
        for _ in range(3):
            assert b'pod="pod-15"' in urllib.request.urlopen(url, timeout=20).read()
        assert_requested(process.pid, way, "agent")
