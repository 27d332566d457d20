"""kubelet itself, without a cluster: it runs the pods that lie in a folder, on a Docker Engine.

`tests/engine/real-kubelet FILE` builds one. It has mounts of its own, so that nothing of the machine's is touched but
settings of the kernel, which are put back.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker

from cli import PROGRAMS
from support import wait_until

NODE = "node-a"
SETTINGS = [Path("/proc/sys") / name for name in ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")]
# Kubelet's folder for sockets of plugins is a constant of it, so it gets mounts of its own.
IN_MOUNTS_OF_ITS_OWN = """
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet/device-plugins
mount --bind "$0/device-plugins" /var/lib/kubelet/device-plugins
exec "$@"
"""
CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "fileCheckFrequency": "1s",
    "syncFrequency": "2s",
    "enableServer": False,
    "healthzPort": 0,
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "resolvConf": "",
    "evictionHard": {f"{each}.available": "0%" for each in ("memory", "nodefs", "imagefs")}
    | {"nodefs.inodesFree": "0%"},
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}


@dataclass
class RealKubelet:
    """A kubelet whose folder is `folder`. Its pods' containers are made from `image`, on `engine`."""

    program: Path
    folder: Path
    engine: docker.DockerClient
    host: str
    image: str
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Also again: it goes on with what it finds."""
        for name in ("device-plugins", "manifests"):
            (self.folder / name).mkdir(exist_ok=True)
        configuration = CONFIGURATION | {"staticPodPath": str(self.folder / "manifests")}
        (self.folder / "kubelet.yaml").write_text(json.dumps(configuration))
        options = {
            "config": self.folder / "kubelet.yaml",
            "root-dir": self.folder,
            "cert-dir": self.folder / "certificates",
            "docker-endpoint": self.host,
            "pod-infra-container-image": self.image,
            "hostname-override": NODE,
            "network-plugin": "",
        }
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", IN_MOUNTS_OF_ITS_OWN, self.folder]
        command += [self.program, *(f"--{name}={value}" for name, value in options.items())]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        """Its containers go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def add(self, pod: str, *containers: Mapping[str, Any], first: Sequence[Mapping[str, Any]] = ()) -> None:
        """Let a pod be. Containers are made by container(); `first` are init containers."""

        def made(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
            mounts = [{"name": "programs", "mountPath": "/programs"}]
            return [{**each, "image": self.image, "imagePullPolicy": "Never", "volumeMounts": mounts} for each in given]

        spec = {
            "hostNetwork": True,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 1,
            "containers": made(containers),
            "initContainers": made(first),
            "volumes": [{"name": "programs", "hostPath": {"path": str(PROGRAMS)}}],
        }
        content = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "lab"}, "spec": spec}
        half_made = self.folder / f"{pod}.new"
        half_made.write_text(json.dumps(content))
        half_made.rename(self.folder / "manifests" / f"{pod}.json")

    def remove(self, pod: str) -> None:
        """Take a pod away, and wait until none of its containers runs."""
        (self.folder / "manifests" / f"{pod}.json").unlink()
        wait_until(lambda: not any(each.status == "running" for each in self.containers(pod)), f"end of {pod}", 60)

    def containers(self, pod: str, name: str = "main") -> list[Any]:
        """All that have been made for a container of a pod, the oldest first."""
        labels = [f"io.kubernetes.pod.name={pod}-{NODE}", f"io.kubernetes.container.name={name}"]
        found = self.engine.containers.list(all=True, filters={"label": labels})
        return sorted(found, key=lambda each: each.attrs["Created"])

    def answer(self, pod: str, name: str = "main", start: int = 0) -> Any:
        """The JSON that a container has printed as it ran for the first time, or again."""

        def lines() -> list[bytes]:
            found = self.containers(pod, name)
            return found[start].logs(stdout=True, stderr=False).splitlines() if len(found) > start else []

        return json.loads(wait_until(lines, f"answer of {pod}/{name}", 60)[-1])


def container(name: str, units: Mapping[str, int], *command: str) -> dict[str, Any]:
    """A container of a pod."""
    limits = {resource: str(count) for resource, count in units.items()}
    return {"name": name, "command": list(command), "resources": {"limits": limits}}


@contextmanager
def running_kubelet(kubelet: RealKubelet) -> Iterator[RealKubelet]:
    settings = {path: path.read_text() for path in SETTINGS}
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
        for each in kubelet.engine.containers.list(all=True):
            each.remove(force=True)
        for path, text in settings.items():
            path.write_text(text)
