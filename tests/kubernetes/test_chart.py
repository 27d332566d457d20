"""The Helm chart: helm makes of it what kubectl makes of the kustomizations, with the values in their places."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from api_server import check_schema
from helm_program import helm
from support import CHECKOUT
from support.debian_packages import tool
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources, read_offered_resources

FOLDER = CHECKOUT / "examples" / "kubernetes"
CHART = FOLDER / "chart"
Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def made(*values: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    options = [argument for value in values for argument in ("--set", value)]
    command = [helm(), "template", "vgpurun", chart, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", ["dra", "device-plugin"])
def test_without_values_it_is_what_kubectl_applies(way: str) -> None:
    kubectl = tool("kubectl", "kubernetes-client", release="trixie")
    theirs = subprocess.run([kubectl, "kustomize", FOLDER / way], capture_output=True, text=True, check=True).stdout
    assert objects(made(f"way={way}").stdout) == objects(theirs)


def test_values_take_the_place_of_what_is_in_the_manifests() -> None:
    values = ("image.repository=a.registry/plugin", "image.tag=7", "runtimeClassName=nvidia", "nodeSelector.gpu=yes")
    found = objects(made(*values).stdout)
    for each in found.values():
        check_schema(each, "1.36")
    pod = found["DaemonSet", "vgpurun-dra"]["spec"]["template"]["spec"]
    assert {container["image"] for container in pod["containers"]} == {"a.registry/plugin:7"}
    assert (pod["runtimeClassName"], pod["nodeSelector"]) == ("nvidia", {"gpu": "yes"})


def test_an_offer_is_read_and_a_change_of_it_restarts_the_plugins(tmp_path: Path) -> None:
    pods = []
    for unit in ("1g", "2g"):
        found = objects(made("way=device-plugin", "offer.memory.name=a.b/c", f"offer.memory.unit={unit}").stdout)
        (tmp_path / "offer.yaml").write_text(found["ConfigMap", "vgpurun-offer"]["data"]["offer.yaml"])
        assert read_offered_resources(tmp_path / "offer.yaml") == OfferedResources(
            memory_name="a.b/c", memory_unit_bytes=int(unit[0]) << 30
        )
        pods.append(found["DaemonSet", "vgpurun-device-plugin"]["spec"]["template"]["metadata"]["annotations"])
    assert pods[0] != pods[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["way=both"], "way 'both' is not dra or device-plugin"),
        (["offer.memory.unit=1g"], "offer is of the way device-plugin"),
    ],
)
def test_values_that_cannot_be_are_refused(values: list[str], words: str) -> None:
    refused = made(*values)
    assert refused.returncode != 0
    assert words in refused.stderr


def test_a_package_of_it_has_the_manifests(tmp_path: Path) -> None:
    """They are links in the checkout."""
    subprocess.run([helm(), "package", CHART, "--destination", tmp_path], capture_output=True, check=True)
    (package,) = tmp_path.iterdir()
    assert objects(made(chart=package).stdout) == objects(made().stdout)
