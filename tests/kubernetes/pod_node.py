"""A node, empty at first, that runs the pods of an API server: a machine of its own with two simulated GPUs.

A container is a process of the machine's, with what its volumes or the device plugin's answers mount, in the machine's
own files: these are its image.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kubelet_double import Kubelet, RefusedError
from node_names import UUIDS
from object_server import ObjectServer
from pod_resources import PodResources
from support import wait_until
from support.empty_node import empty_node
from support.own_machine import OwnMachine
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api

NAME = "node-a"
PROGRAM = "/opt/vgpurun"  # as in the image of dockerfiles/Dockerfile.plugin
GPUS = "devices:\n" + "".join(f"  - uuid: {uuid}\n    memory_mib: 81920\n" for uuid in UUIDS)
BIND = """
[ ! -d {source} ] || mkdir -p {place}
[ -e {place} ] || {{ mkdir -p $(dirname {place}); touch {place}; }}
mount --bind {source} {place}
mount -o remount,bind,{mode} {place}
"""


class PodNode:
    """The node. `kubelet` gives devices to containers, and `running` is what the pod-resources API says of them."""

    def __init__(self, machine: OwnMachine, server: ObjectServer) -> None:
        self.machine = machine
        self.server = server
        self.kubelet = Kubelet(machine.path("/var/lib/kubelet/device-plugins"))
        self.running = PodResources(machine.path("/var/lib/kubelet"))
        self._daemons: dict[str, subprocess.Popen[str]] = {}

    def run_daemon_sets(self) -> None:
        """Run the containers of the DaemonSets, anew if they run, until they answer their probes."""
        self.stop_daemon_sets()
        labels = self.server.objects["Node", "", NAME]["metadata"].get("labels", {})
        for each in self.server.of_kind("DaemonSet"):
            pod = each["spec"]["template"]["spec"]
            if pod["nodeSelector"].items() <= labels.items():
                for container in pod["containers"]:
                    self._start_daemon(each["metadata"]["namespace"], pod["volumes"], container)
                for container in pod["containers"]:
                    self._wait_for_probe(container)

    def stop_daemon_sets(self) -> None:
        """End them as kubelet does."""
        for name in self._daemons:
            self.machine.run(f"kill $(cat /node/{name}.pid)")
        for each in self._daemons.values():
            each.communicate(timeout=40)
        self._daemons.clear()

    def _start_daemon(self, namespace: str, volumes: list[dict[str, Any]], container: dict[str, Any]) -> None:
        """Start a container whose volumes are folders of the node at the same paths, and ConfigMaps."""
        sources, name = {each["name"]: each for each in volumes}, container["name"]
        script = ["set -e", f"echo $$ >/node/{name}.pid"]
        for mount in container["volumeMounts"]:
            source, place = sources[mount["name"]], mount["mountPath"]
            if "hostPath" in source:
                assert source["hostPath"]["path"] == place
                continue
            data = self.server.objects["ConfigMap", namespace, source["configMap"]["name"]]["data"]
            script.append(f"mount -t tmpfs tmpfs {place}")
            script += [f"printf %s {shlex.quote(text)} >{place}/{file}" for file, text in data.items()]
        script.append(f"exec {PROGRAM}/bin/vgpurun {shlex.join(container['args'])} >>/node/{name}.log 2>&1")
        self._daemons[name] = self.machine.start(_in_its_own_view(script))

    def _wait_for_probe(self, container: dict[str, Any]) -> None:
        probe = container.get("readinessProbe", container["livenessProbe"])["httpGet"]
        (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == probe["port"])

        def answers() -> bool:
            is_running = self._daemons[container["name"]].poll() is None
            assert is_running, self.machine.path(f"/node/{container['name']}.log").read_text()
            return self.http(port, probe["path"]).returncode == 0

        wait_until(answers, f"answer of {container['name']}")

    def http(self, port: int, path: str) -> subprocess.CompletedProcess[str]:
        """Print what a port of the node's answers."""
        url = f"http://127.0.0.1:{port}{path}"
        code = f"from urllib import request; print(request.urlopen({url!r}, timeout=5).read().decode())"
        return self.machine.run(f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}")

    def run_pod(self, name: str) -> None:
        """Run the containers of a pod of the default namespace, as far as the plugin admits it and starts them."""
        containers = self.server.objects["Pod", "default", name]["spec"]["containers"]
        asked = {each["name"]: {key: int(n) for key, n in each["resources"]["limits"].items()} for each in containers}
        try:
            self.kubelet.admit(name, asked)
        except RefusedError as error:
            self.server.tell(name, "Failed", "UnexpectedAdmissionError", f"Allocate failed due to {error}")
            return
        for container in containers:
            try:
                answers = self.kubelet.start_container(name, container["name"])
            except RefusedError as error:
                self.server.tell(name, "Pending", "Failed", f"Error: {error}")
                return
            self.server.logs[name] = self.machine.ask(_in_its_own_view(_container(answers, container["command"])))
            units = {key: given.ids for key, given in self.kubelet.containers[name, container["name"]].items()}
            self.running.pods.setdefault(("default", name), {})[container["name"]] = {"units": units}

    def end_pod(self, name: str) -> None:
        """Take what a pod has: it is gone."""
        self.kubelet.evict(name)
        self.running.pods.pop(("default", name))


def _in_its_own_view(script: Sequence[str]) -> str:
    return f"exec unshare --mount bash -c {shlex.quote(chr(10).join(script))}"


def _container(answers: Sequence[api.ContainerAllocateResponse], command: list[str]) -> list[str]:
    mounts = {each.container_path: each for answer in answers for each in answer.mounts}
    script = ["set -e"]
    for place, each in sorted(mounts.items()):
        script.append(BIND.format(source=each.host_path, place=place, mode="ro" if each.read_only else "rw"))
    variables = [f"{key}={value}" for answer in answers for key, value in answer.envs.items()]
    return [*script, shlex.join(["exec", "env", "-i", "PATH=/usr/bin:/bin", *variables, *command])]


@contextmanager
def pod_node(server: ObjectServer) -> Iterator[PodNode]:
    """Run one, with a kubelet. Raises UnavailableError."""
    with empty_node(GPUS, f"{PROGRAM}/bin") as machine:
        machine.ask("mkdir /var/lib/kubelet/device-plugins")
        node = PodNode(machine, server)
        node.kubelet.start()
        try:
            with node.running.running():
                yield node
        finally:
            node.stop_daemon_sets()
            node.kubelet.stop()
