"""docs/kubernetes.md, step by step: from an empty node to the last command of the page.

kubectl and Helm are real, and talk to an API server's double. vgpurun is installed on a node, where a kubelet's double
gives pods what they ask for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from helm_program import PACKAGES, helm
from node_names import COMPUTE, MEMORY
from object_server import ADMISSION, KINDS, ObjectServer
from pod_node import NAME, PROGRAM, PodNode, pod_node
from support import CHECKOUT
from support.debian_packages import tool
from support.page_steps import Steps, text_of_page, without_remark
from support.python_packages import virtual_environment, wheel

pytestmark = pytest.mark.slow
REPLACED = {
    "docker build": "takes minutes: test_plugin_image.py does it. The node's own installation stands for the image",
    "docker push": "there is no registry",
}
NAMES = {"NODE": NAME, "REGISTRY": "registry.example"}  # for those that a reader puts in
WAY = "examples/kubernetes/device-plugin"
SLICES = {"vgpurun.io/slice-small": 4, "vgpurun.io/slice-large": 1}  # of two GPUs


class Administrator:
    """The machine with a checkout and the programs, by which the cluster is reached."""

    def __init__(self, folder: Path, server: ObjectServer) -> None:
        self.folder = folder
        self.server = server
        shutil.copytree(CHECKOUT / "examples", folder / "examples", symlinks=True)
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "kubectl").symlink_to(tool("kubectl", "kubernetes-client", release="trixie"))

    def run(self, step: str, server: ObjectServer | None = None) -> str:
        """Run a command, on another cluster if one is named, and return what it has printed."""
        environment = {
            "HOME": str(self.folder),
            "KUBECONFIG": (server or self.server).kubeconfig(self.folder),
            "PATH": f"{self.bin}:/usr/bin:/bin",
        }
        command = ["bash", "-c", with_names(without_remark(step))]
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
        return done.stdout

    def edit(self, file: str, before: str, after: str) -> None:
        text = (self.folder / file).read_text()
        assert text.count(before) == 1
        (self.folder / file).write_text(text.replace(before, after))

    def apply_pod(self, name: str, **asked: int) -> None:
        """Apply a pod of the test's own."""
        container = {"name": "main", "image": "any", "command": ["true"], "resources": {"limits": asked}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(pod))
        self.run(f"kubectl apply -f {name}.yaml")


def with_names(step: str) -> str:
    for word, name in NAMES.items():
        step = re.sub(rf"\b{word}\b", name, step)
    return step


@pytest.fixture
def node(built_library: Path, tmp_path: Path) -> Iterator[PodNode]:
    """A node with the extra k8s, whose API server knows nothing but its name."""
    with ObjectServer(NAME).running() as server, pod_node(server) as node:
        virtual_environment(node.machine, PROGRAM)
        shutil.copy(wheel(tmp_path), node.machine.path("/node"))
        node.machine.ask("pip install --quiet --no-deps /node/vgpurun-*.whl")
        yield node


def test_from_an_empty_node_to_the_last_command(node: PodNode, tmp_path: Path) -> None:
    steps = Steps(text_of_page("kubernetes.md"), REPLACED)
    administrator = Administrator(tmp_path / "checkout", node.server)
    ask_as_for_alnair(steps, administrator)
    offer = offer_slices(steps, node)
    install_by_kubectl(steps, administrator, node)
    with ExitStack() as clusters:
        of_helm = install_by_helm(steps, administrator, clusters)
        install_in_another_namespace(steps, administrator)
        allow_folders_of_nodes(steps, administrator, of_helm)
    keep_the_folder_of_tenants(steps, node)
    try_it(steps, administrator, node)
    change_the_offer(steps, administrator, node, offer)
    scrape(steps, administrator, node)
    take_pods_of_others(steps, administrator)
    look_at_pods_that_never_start(steps, administrator, node)
    steps.end()


def ask_as_for_alnair(steps: Steps, administrator: Administrator) -> None:
    asked = yaml.safe_load(steps.next("resources:"))
    pod = yaml.safe_load((administrator.folder / "examples/kubernetes/pods/alnair.yaml").read_text())
    assert pod["spec"]["containers"][0]["resources"] == asked["resources"]


def offer_slices(steps: Steps, node: PodNode) -> str:
    """Return the page's file."""
    offer = steps.next("slices:")
    node.machine.path("/node/offer.yaml").write_text(offer)
    shown = yaml.safe_load(node.machine.ask(f"cd /node; {steps.next('--dry-run')}"))
    left = {MEMORY: (80 - 20 - 8) + (80 - 8), COMPUTE: (100 - 50 - 40) + (100 - 40)}
    assert {each["resource"]: each["units"] for each in shown} == {**left, **SLICES}
    return offer


def install_by_kubectl(steps: Steps, administrator: Administrator, node: PodNode) -> None:
    assert administrator.run(steps.next("kubectl label node")) == f"node/{NAME} labeled\n"
    pushed = with_names(steps.passed[-1]).split()[-1]
    image = pushed.split(":")[0]
    administrator.edit(f"{WAY}/kustomization.yaml", "newName: vgpurun-plugin ", f"newName: {image} ")
    administrator.run(steps.next("kubectl apply -k"))
    (daemon_set,) = node.server.of_kind("DaemonSet")
    assert {each["image"] for each in daemon_set["spec"]["template"]["spec"]["containers"]} == {pushed}
    node.run_daemon_sets()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)


def install_by_helm(steps: Steps, administrator: Administrator, clusters: ExitStack) -> list[ObjectServer]:
    """Install the same by each Helm, on a cluster of its own; return these."""
    command = steps.next("helm install")
    servers = [clusters.enter_context(ObjectServer(NAME).running()) for _ in PACKAGES]
    (ours,) = administrator.server.of_kind("DaemonSet")
    for version, server in zip(PACKAGES, servers, strict=True):
        (administrator.bin / "helm").unlink(missing_ok=True)
        (administrator.bin / "helm").symlink_to(helm(version))
        administrator.run(command, server)
        (theirs,) = server.of_kind("DaemonSet")
        assert (theirs["metadata"]["namespace"], theirs["spec"]) == (ours["metadata"]["namespace"], ours["spec"])
    return servers


def install_in_another_namespace(steps: Steps, administrator: Administrator) -> None:
    (administrator.folder / "kustomization.yaml").write_text(steps.next("namespace:", WAY))
    with ObjectServer(NAME).running() as server:
        administrator.run(steps.next("kubectl apply -k ."), server)
        (daemon_set,) = server.of_kind("DaemonSet")
    assert daemon_set["metadata"]["namespace"] == "gpu-tools"


def allow_folders_of_nodes(steps: Steps, administrator: Administrator, of_helm: list[ObjectServer]) -> None:
    command, label = steps.next("kubectl label namespace"), "pod-security.kubernetes.io/enforce"
    for server in of_helm:
        administrator.run(command, server)
    found = [each.objects["Namespace", "", "vgpurun-system"] for each in (administrator.server, *of_helm)]
    assert {each["metadata"]["labels"][label] for each in found} == {"privileged"}


def keep_the_folder_of_tenants(steps: Steps, node: PodNode) -> None:
    node.machine.ask(steps.next("echo", "/etc/tmpfiles.d"))
    (line,) = node.machine.path("/etc/tmpfiles.d/vgpurun.conf").read_text().splitlines()
    assert line in (CHECKOUT / "lib/packaging/debian/tmpfiles.conf").read_text()


def try_it(steps: Steps, administrator: Administrator, node: PodNode) -> None:
    assert administrator.run(steps.next("kubectl apply -f")) == "pod/units created\n"
    node.run_pod("units")
    command = steps.next("kubectl logs")
    (size_mib,) = re.findall(r"# .* (\d+) MiB", command)
    assert f"{size_mib}MiB" in administrator.run(command)
    node.end_pod("units")


def change_the_offer(steps: Steps, administrator: Administrator, node: PodNode, offer: str) -> None:
    file = administrator.folder / WAY / "config-map.yaml"
    before, key, _ = file.read_text().partition("  offer.yaml: |\n")
    file.write_text(f"{before}{key}{textwrap.indent(offer, '    ')}")
    administrator.run(f"kubectl apply -k {WAY}")
    assert "restarted" in administrator.run(steps.next("rollout restart"))
    assert not SLICES.keys() & node.kubelet.plugins.keys()
    node.run_daemon_sets()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE, *SLICES)
    assert {name: len(node.kubelet.plugins[name].healthy) for name in SLICES} == SLICES


def scrape(steps: Steps, administrator: Administrator, node: PodNode) -> None:
    administrator.run("kubectl apply -f examples/kubernetes/pods/alnair.yaml")
    node.run_pod("vgpu-example")
    labels = 'container="cuda"', 'namespace="default"', 'pod="vgpu-example"'
    lines = node.http(9487, "/metrics").stdout.splitlines()
    of_pod = {line.partition("{")[0]: line.split()[-1] for line in lines if all(label in line for label in labels)}
    assert float(of_pod["vgpurun_container_memory_limit_bytes"]) == 2 << 30, lines
    administrator.run(steps.next("kubectl apply -k", "monitoring"))
    assert len(administrator.server.of_kind("PodMonitor")) == 1


def take_pods_of_others(steps: Steps, administrator: Administrator) -> None:
    """test_moving_pods.py shows what the policies do."""
    administrator.run(steps.next("kubectl apply -k", "moving"))
    assert [len(administrator.server.of_kind(kind)) for kind in KINDS[ADMISSION]] == [2, 2]


def look_at_pods_that_never_start(steps: Steps, administrator: Administrator, node: PodNode) -> None:
    for name, asked in (("without-memory", {COMPUTE: 5}), ("on-two-gpus", {MEMORY: 100})):
        administrator.apply_pod(name, **asked)
        node.run_pod(name)
    described = administrator.run(steps.next("kubectl describe pod"))
    assert "ask for alnair/vgpu-memory too" in described
    assert "UnexpectedAdmissionError" in described and "are on no single GPU" in described
    administrator.run(steps.next("kubectl delete pods"))
    left = {each["metadata"]["name"] for each in administrator.server.of_kind("Pod")}
    assert left == {"units", "vgpu-example", "without-memory"}
