"""The Helm chart: helm makes of it what kubectl makes of the kustomizations, with the values in their places."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from api_server import check_schema
from helm_program import PACKAGES, helm
from installs import CHART, FOLDER, Objects, by_helm, by_kubectl, run_helm
from support import CHECKOUT
from support.page_steps import text_of_page
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources, read_offered_resources

WAYS = {"dra": "vgpurun-dra", "device-plugin": "vgpurun-device-plugin"}  # the names of their DaemonSets


@pytest.fixture(params=PACKAGES)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pod_of(found: Objects, way: str) -> dict[str, Any]:
    template: dict[str, Any] = found["DaemonSet", WAYS[way]]["spec"]["template"]
    return template


@pytest.mark.parametrize("way", WAYS)
def test_without_values_it_is_what_kubectl_applies_but_for_the_namespace(version: str, way: str) -> None:
    theirs = by_kubectl(FOLDER / way)
    del theirs["Namespace", "vgpurun-system"]  # Helm installs into one that is there
    assert by_helm(version, "--namespace", "vgpurun-system", "--set", f"way={way}") == theirs


@pytest.mark.parametrize("way", WAYS)
def test_values_take_the_place_of_what_is_in_the_manifests(version: str, way: str) -> None:
    values = {
        "way": way,
        "image": {"repository": "a.registry/plugin", "tag": "7"},
        "imagePullSecrets": [{"name": "a-login"}],
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "plugin": {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}, "extraArgs": ["--driver=toolkit"]},
        "agent": {"resources": {"limits": {"memory": "2Gi"}}, "extraArgs": ["--compat=hami"]},
    }
    given = pod_of(by_helm(version, values={"way": way}), way)["spec"]
    found = by_helm(version, values=values)
    for each in found.values():
        check_schema(each, "1.36")
    pod = pod_of(found, way)["spec"]
    assert {container["image"] for container in pod["containers"]} == {"a.registry/plugin:7"}
    for key in ("imagePullSecrets", "runtimeClassName", "nodeSelector", "tolerations"):
        assert pod[key] == values[key]
    for before, container in zip(given["containers"], pod["containers"], strict=True):
        wanted: Any = values[container["name"]]
        assert container["resources"] == wanted["resources"]
        assert container["args"] == before["args"] + wanted["extraArgs"]


def test_an_offer_is_read_and_a_change_of_it_restarts_the_plugins(version: str, tmp_path: Path) -> None:
    pods = []
    for unit in ("1g", "2g"):
        values = {"way": "device-plugin", "offer": {"memory": {"name": "a.b/c", "unit": unit}}}
        found = by_helm(version, values=values)
        (tmp_path / "offer.yaml").write_text(found["ConfigMap", "vgpurun-offer"]["data"]["offer.yaml"])
        assert read_offered_resources(tmp_path / "offer.yaml") == OfferedResources(
            memory_name="a.b/c", memory_unit_bytes=int(unit[0]) << 30
        )
        pods.append(pod_of(found, "device-plugin")["metadata"]["annotations"])
    assert pods[0] != pods[1]


SLICES = {"slices": {"small": {"mem": "4g", "sm": 20, "count": 2}, "large": {"mem": "20g", "gpus": [0, "GPU-1"]}}}


def test_an_offer_has_slices_and_may_be_of_a_parent_chart(version: str) -> None:
    values = {"way": "device-plugin", "offer": SLICES, "global": {"of": "a parent chart"}}
    data = by_helm(version, values=values)["ConfigMap", "vgpurun-offer"]["data"]
    assert yaml.safe_load(data["offer.yaml"]) == SLICES


def wrong(values: dict[str, Any], *words: str) -> Any:
    return pytest.param(values, words, id=str(values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        wrong({"way": "both"}, "way", "dra", "device-plugin"),
        wrong({"offer": {"memory": {"unit": "1g"}}}, "offer is of the way device-plugin"),
        wrong({"nodeSelectors": {"gpu": "yes"}}, "nodeSelectors"),
        wrong({"nodeSelector": {"gpu": True}}, "nodeSelector", "gpu"),
        wrong({"image": "vgpurun-plugin:7"}, "image"),
        wrong({"image": {"tag": 1.1}}, "image", "tag"),
        wrong({"image": {"name": "x"}}, "image", "name"),
        wrong({"imagePullSecrets": ["a-login"]}, "imagePullSecrets"),
        wrong({"runtimeClassName": ["nvidia"]}, "runtimeClassName"),
        wrong({"tolerations": {"key": "a"}}, "tolerations"),
        wrong({"tolerations": [{"key": "a", "effect": "noSchedule"}]}, "tolerations", "effect"),
        wrong({"plugin": {"resource": {}}}, "plugin", "resource"),
        wrong({"plugin": {"resources": {"memory": "1Gi"}}}, "plugin", "resources", "memory"),
        wrong({"agent": {"extraArgs": "--compat=hami"}}, "agent", "extraArgs"),
        wrong({"podMonitor": {"enabled": "yes"}}, "podMonitor", "enabled"),
        wrong({"way": "device-plugin", "offer": {"memmory": {}}}, "offer", "memmory"),
        wrong({"way": "device-plugin", "offer": {"slices": {"a": {"mem": "4g", "cuont": 2}}}}, "offer", "cuont"),
        wrong({"way": "device-plugin", "offer": {"slices": {"a": {"mem": "4g", "count": "2"}}}}, "offer", "count"),
    ],
)
def test_values_that_cannot_be_are_refused(version: str, values: dict[str, Any], words: tuple[str, ...]) -> None:
    refused = run_helm(version, values=values)
    assert refused.returncode != 0
    assert all(word in refused.stderr for word in words), refused.stderr


def paths(content: dict[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*where, key)
        if isinstance(value, dict):
            yield from paths(value, (*where, key))


def test_every_value_is_in_the_schema() -> None:
    """Helm would refuse a value that is not in the schema wherever it is given."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    for path in paths(yaml.safe_load((CHART / "values.yaml").read_text())):
        inner = schema
        for key in path:
            inner = inner["properties"][key]
            inner = schema["definitions"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner


def test_the_commands_of_the_page_on_claims(version: str) -> None:
    """test_kubernetes_page.py has those of the device plugin's page."""
    lines = text_of_page("kubernetes-dra.md").replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith(("    helm ", "    kubectl apply -k "))]
    assert {command[0] for command in commands} == {"helm", "kubectl"}
    for program, *words in commands:
        if program == "kubectl":
            assert by_kubectl(CHECKOUT / words[-1])
        else:
            assert words[:3] == ["install", "vgpurun", "examples/kubernetes/chart"]
            options = [word for word in words[3:] if word != "--create-namespace"]  # of which `template` knows nothing
            assert {each["metadata"].get("namespace") for each in by_helm(version, *options).values()} <= {
                "vgpurun-system",
                None,
            }


def test_a_package_of_it_has_the_manifests(version: str, tmp_path: Path) -> None:
    """They are links in the checkout."""
    subprocess.run([helm(version), "package", CHART, "--destination", tmp_path], capture_output=True, check=True)
    (package,) = tmp_path.iterdir()
    assert by_helm(version, chart=package) == by_helm(version)
