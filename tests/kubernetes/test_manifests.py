"""The manifests of examples/kubernetes: whole, valid for the versions that they are for, and no laxer than needed."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from api_server import ApiServer, check_schema
from claim_maker import claim, result
from claim_node import GPUS, ClaimNode, named
from slice_policy import refusals
from support import CHECKOUT
from support.debian_packages import tool
from vgpurun.cli import cli
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.config import config_of
from vgpurun.kubernetes.dra.model import DRIVER, device
from vgpurun.kubernetes.dra.publish import Publisher

FOLDER = CHECKOUT / "examples" / "kubernetes"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
INSTALLS = sorted(path.parent for path in FOLDER.glob("*/kustomization.yaml"))
# Kinds of Kueue and JobSet, and of the Prometheus operator, whose schemas are not among Kubernetes' own.
OF_QUEUES = {"ResourceFlavor", "ClusterQueue", "LocalQueue", "JobSet"}
OF_OTHERS = OF_QUEUES | {"PodMonitor"}
# The parts of the node that the DaemonSets may see.
HOST_PATHS = {
    "/etc/cdi",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/pod-resources",
    "/var/lib/vgpurun",
    "/var/run/cdi",
    "/var/tmp",
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def built(folder: Path) -> list[dict[str, Any]]:
    """Return what `kubectl kustomize` makes of a folder, as far as these kustomizations go."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    assert set(kustomization) <= {"apiVersion", "kind", "resources", "images"}, "not understood here"
    found = []
    for name in kustomization["resources"]:
        place = (folder / name).resolve()
        found += built(place) if place.is_dir() else documents(place)
    return found


def manifests() -> list[Path]:
    found = sorted(path for path in FOLDER.rglob("*.yaml") if path.name not in ("kustomization.yaml", "offer.yaml"))
    return [path for path in found if FOLDER / "chart" not in path.parents]  # test_chart.py has that


def jobs_of(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Jobs that a JobSet makes."""
    for each in found["spec"].get("replicatedJobs", []) if found["kind"] == "JobSet" else []:
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"]}, **each["template"]}


def daemon_sets() -> list[dict[str, Any]]:
    return [each for folder in INSTALLS for each in built(folder) if each["kind"] == "DaemonSet"]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every container of the DaemonSets, with the pod that it is in."""
    for each in daemon_sets():
        pod = each["spec"]["template"]["spec"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield pod, container


def versions_of(path: Path) -> tuple[str, ...]:
    """The versions of Kubernetes that a manifest is for: policies that change pods are of 1.36."""
    return VERSIONS[VERSIONS.index("1.36") :] if path.parent.name == "moving" else VERSIONS


@pytest.mark.parametrize(
    ("path", "version"),
    [
        pytest.param(path, version, id=f"{path.relative_to(FOLDER)}-{version}")
        for path in manifests()
        for version in versions_of(path)
    ],
)
def test_every_manifest_is_valid(path: Path, version: str) -> None:
    found = documents(path)
    assert found
    for each in found:
        for known in [*jobs_of(each)] if each["kind"] in OF_OTHERS else [each]:
            check_schema(known, version)


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        ("dra/daemonset.yaml", ("spec", "template", "spec", "nodeSelectors"), {}),
        ("dra/daemonset.yaml", ("spec", "template", "spec", "containers", 0, "volumeMounts", 0, "path"), "/x"),
        ("dra/daemonset.yaml", ("spec", "template", "spec", "containers", 0, "securityContext", "readOnly"), True),
        ("dra/daemonset.yaml", ("spec", "template", "spec", "containers", 0, "args"), "dra-plugin"),
        ("device-plugin/daemonset.yaml", ("spec", "template", "spec", "volumes", 0, "configmap"), {}),
        ("device-plugin/config-map.yaml", ("data", "offer.yaml"), {"memory": 1}),
        ("dra/device-classes.yaml", ("spec", "selectors", 0, "cel"), "device.driver"),
        ("dra/rbac.yaml", ("rules", 0, "verb"), ["get"]),
        ("dra/slices-of-own-node.yaml", ("spec", "failurePolicies"), "Fail"),
        ("pods/claim.yaml", ("spec", "spec", "devices", "requests", 0, "deviceClassName"), "gpu.vgpurun.io"),
        ("pods/units.yaml", ("spec", "containers", 0, "resources", "limit"), {}),
    ],
)
def test_what_a_server_would_refuse_is_found(file: str, place: tuple[str | int, ...], value: Any) -> None:
    good = documents(FOLDER / file)[0]
    check_schema(good, "1.36")
    bad: Any = copy.deepcopy(good)
    inner = bad
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schema(bad, "1.36")


class TestKustomizations:
    def test_every_manifest_is_part_of_one_or_is_a_pod(self) -> None:
        named_files = {
            (folder / name).resolve()
            for folder in INSTALLS
            for name in documents(folder / "kustomization.yaml")[0]["resources"]
        }
        assert all(path.exists() for path in named_files)
        loose = [path for path in manifests() if path.resolve() not in named_files]
        kinds = {each["kind"] for path in loose for each in documents(path)}
        assert kinds == {"Pod", "Job", "ResourceClaim", "ResourceClaimTemplate"} | OF_QUEUES

    @pytest.mark.parametrize("folder", INSTALLS, ids=lambda folder: folder.name)
    def test_nothing_is_made_twice(self, folder: Path) -> None:
        names = [(each["kind"], each["metadata"]["name"]) for each in built(folder)]
        assert len(names) == len(set(names))

    @pytest.mark.parametrize("folder", INSTALLS, ids=lambda folder: folder.name)
    def test_kubectl_builds_the_same(self, folder: Path) -> None:
        kubectl = tool("kubectl", "kubernetes-client", release="trixie")
        output = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True).stdout
        theirs = {(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(output)}
        assert theirs == {(each["kind"], each["metadata"]["name"]) for each in built(folder)}

    @pytest.mark.parametrize("folder", INSTALLS, ids=lambda folder: folder.name)
    def test_the_image_is_named_in_one_place(self, folder: Path) -> None:
        (kustomization,) = documents(folder / "kustomization.yaml")
        images = {each["name"] for each in kustomization.get("images", [])}
        used = {
            container["image"]
            for each in built(folder)
            if each["kind"] == "DaemonSet"
            for container in each["spec"]["template"]["spec"]["containers"]
        }
        assert used == images


class TestDaemonSets:
    def test_there_is_one_for_each_way(self) -> None:
        assert len(daemon_sets()) == 2

    def test_containers_have_no_right_that_they_do_not_need(self) -> None:
        for pod, container in containers():
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)

    def test_they_see_the_folders_of_the_node_that_they_need(self) -> None:
        for pod, container in containers():
            volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
            assert set(volumes.values()) <= HOST_PATHS
            for mounted in container["volumeMounts"]:
                # A CDI specification, or kubelet, names paths of the node: they must be the same in here.
                assert mounted["mountPath"] == volumes.get(mounted["name"], mounted["mountPath"])
        for pod in {id(pod): pod for pod, _ in containers()}.values():
            used = {mounted["name"] for each in pod["containers"] for mounted in each["volumeMounts"]}
            assert used == {each["name"] for each in pod["volumes"]}

    def test_they_come_on_every_node_with_gpus_and_stay(self) -> None:
        for pod, container in containers():
            assert pod["priorityClassName"] == "system-node-critical"
            assert pod["nodeSelector"]
            assert pod["tolerations"]
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]

    def test_probes_ask_ports_that_are_there(self) -> None:
        for _, container in containers():
            ports = {each["name"] for each in container.get("ports", [])}
            probes = [container[key] for key in ("startupProbe", "livenessProbe", "readinessProbe") if key in container]
            assert probes, container["name"]
            assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= ports

    def test_their_commands_are_verbs_with_their_options(self) -> None:
        for _, container in containers():
            verb, *arguments = container["args"]
            command = cli.commands[verb]
            context = command.make_context(verb, list(arguments), parent=click.Context(cli))
            ports = {str(each["containerPort"]) for each in container.get("ports", [])}
            given = [str(value).rpartition(":")[2] for key, value in context.params.items() if key in PORT_OPTIONS]
            assert {each for each in given if each != "None"} == ports


PORT_OPTIONS = ("listen", "health_port")


class TestRights:
    def test_the_dra_plugin_has_all_that_it_needs_and_no_more(self, tmp_path: Path) -> None:
        role, *_ = (each for each in documents(FOLDER / "dra" / "rbac.yaml") if each["kind"] == "ClusterRole")
        granted = {
            (verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
        }
        with ApiServer(granted=granted).running() as server:
            cluster = Cluster(server.kubeconfig(tmp_path))
            publisher = Publisher(cluster, "node-a")
            publisher.publish(GPUS, "580.1")
            with cluster.watching_slices("node-a") as events:
                assert next(events)["type"] == "ADDED"
            (made,) = server.slices.values()
            server.slices["old"] = made | {"metadata": made["metadata"] | {"name": "old"}}
            publisher.publish(GPUS[1:], "580.1")
            node = ClaimNode(tmp_path / "node", cluster)
            wanted = claim(result(GPUS[0]))
            server.add_claim(wanted)
            node.driver().prepare(named(wanted))
        assert set(server.requests) == granted

    def test_the_accounts_of_bindings_and_pods_are_there(self) -> None:
        for folder in INSTALLS:
            found = built(folder)
            accounts = {each["metadata"]["name"] for each in found if each["kind"] == "ServiceAccount"}
            roles = {each["metadata"]["name"] for each in found if each["kind"] == "ClusterRole"}
            for each in found:
                if each["kind"] == "DaemonSet":
                    assert each["spec"]["template"]["spec"]["serviceAccountName"] in accounts
                if each["kind"] == "ClusterRoleBinding":
                    assert {subject["name"] for subject in each["subjects"]} <= accounts
                    assert each["roleRef"]["name"] in roles


class TestSlicesOfOwnNode:
    OURS = "system:serviceaccount:vgpurun-system:vgpurun"

    def refusals(self, node: str, driver: str = DRIVER, operation: str = "CREATE", **user: Any) -> list[str]:
        """The messages of what fails when our account writes a slice; none where the policy is not about its writer."""
        policy, _ = documents(FOLDER / "dra" / "slices-of-own-node.yaml")
        return refusals(policy, {"username": self.OURS, **user}, node, driver, operation)

    @pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
    def test_a_plugin_writes_those_of_its_node_and_driver(self, operation: str) -> None:
        token = {"extra": {"authentication.kubernetes.io/node-name": ["node-a"]}}
        assert self.refusals("node-a", operation=operation, **token) == []
        (elsewhere,) = self.refusals("node-b", operation=operation, **token)
        assert "its own node" in elsewhere
        (foreign,) = self.refusals("node-a", "gpu.example.com", operation, **token)
        assert "its own driver" in foreign

    @pytest.mark.parametrize("user", [{}, {"extra": {}}, {"extra": {"authentication.kubernetes.io/node-name": []}}])
    def test_a_token_that_is_of_no_node_writes_none(self, user: dict[str, Any]) -> None:
        (refused,) = self.refusals("node-a", **user)
        assert "its own node" in refused

    @pytest.mark.parametrize(
        "username",
        [
            "system:node:vgpurun",
            "system:serviceaccount:kube-system:generic-garbage-collector",
            "system:serviceaccount:vgpurun-system:other-driver",
        ],
    )
    def test_others_are_left_alone(self, username: str) -> None:
        assert self.refusals("node-b", "gpu.example.com", username=username) == []


class TestJobSet:
    def test_its_queue_covers_what_its_pods_ask_for_and_has_room(self) -> None:
        found = {each["kind"]: each for each in documents(FOLDER / "pods" / "jobset.yaml")}
        (group,) = found["ClusterQueue"]["spec"]["resourceGroups"]
        (flavor,) = group["flavors"]
        assert flavor["name"] == found["ResourceFlavor"]["metadata"]["name"]
        assert found["LocalQueue"]["spec"]["clusterQueue"] == found["ClusterQueue"]["metadata"]["name"]
        assert (
            found["JobSet"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
            == found["LocalQueue"]["metadata"]["name"]
        )
        quotas = {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
        assert (
            set(quotas)
            == set(group["coveredResources"])
            == {OfferedResources.memory_name, OfferedResources.compute_name}
        )
        for job in jobs_of(found["JobSet"]):
            (container,) = job["spec"]["template"]["spec"]["containers"]
            for name, count in container["resources"]["limits"].items():
                assert count * job["spec"]["parallelism"] <= quotas[name]


class TestClaims:
    def requests(self) -> Iterator[dict[str, Any]]:
        for path in sorted((FOLDER / "pods").glob("*.yaml")):
            for each in documents(path):
                if each["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
                    spec = each["spec"].get("spec", each["spec"])
                    yield from (request["exactly"] for request in spec["devices"]["requests"])

    def test_their_classes_and_capacities_are_there(self) -> None:
        classes = {each["metadata"]["name"] for each in documents(FOLDER / "dra" / "device-classes.yaml")}
        capacities = set(device(GPUS[0], "580.1")["capacity"])
        found = list(self.requests())
        assert len(found) > 3
        for request in found:
            assert request["deviceClassName"] in classes
            assert set(request["capacity"]["requests"]) <= capacities

    def test_pods_name_claims_that_are_there(self) -> None:
        for path in (FOLDER / "pods").glob("*.yaml"):
            found = [each for each in documents(path) if each["kind"] not in OF_OTHERS]
            names = {each["metadata"]["name"] for each in found if each["kind"].startswith("ResourceClaim")}
            for each in found:
                pod = each["spec"]["template"]["spec"] if each["kind"] == "Job" else each["spec"]
                for used in pod.get("resourceClaims", []):
                    assert {used.get("resourceClaimName"), used.get("resourceClaimTemplateName")} & names
                    claimed = [one["name"] for box in pod["containers"] for one in box["resources"]["claims"]]
                    assert used["name"] in claimed

    def test_the_parameters_of_classes_are_understood(self) -> None:
        given = [
            {"source": "FromClass", **config}
            for each in documents(FOLDER / "dra" / "device-classes.yaml")
            for config in each["spec"].get("config", [])
        ]
        assert given
        assert all(each["opaque"]["driver"] == DRIVER for each in given)
        assert config_of(given, "gpu") != config_of([], "gpu")

    def test_pods_that_work_at_the_same_time_are_as_the_hook_wants_them(self) -> None:
        claim, job = documents(FOLDER / "pods" / "together.yaml")
        config = [{"source": "FromClaim", **each} for each in claim["spec"]["devices"]["config"]]
        assert config_of(config, "gpu").together
        pod = job["spec"]["template"]["spec"]
        assert pod["hostIPC"] and [each["securityContext"]["runAsUser"] for each in pod["containers"]] == [0]
