"""Both ways to install can be put into any namespace, under any prefix of names, and keep all that protects them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helm_program import PACKAGES
from installs import Objects, by_helm, by_overlay
from slice_policy import refusals

NAMESPACE = "gpu-tools"


@pytest.fixture(params=["kubectl", "kubectl with a prefix and a suffix", *(f"helm {each}" for each in PACKAGES)])
def installer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def installed(installer: str, way: str, folder: Path) -> Objects:
    if installer.startswith("helm"):
        return by_helm(installer.removeprefix("helm "), "--namespace", NAMESPACE, "--set", f"way={way}")
    names = {"namePrefix": "team-", "nameSuffix": "-2"} if "prefix" in installer else {}
    return by_overlay(folder, [way], namespace=NAMESPACE, **names)


def of_kind(found: Objects, kind: str) -> list[dict[str, Any]]:
    return [each for (its_kind, _), each in found.items() if its_kind == kind]


@pytest.mark.parametrize("way", ["dra", "device-plugin"])
def test_all_of_it_is_in_the_namespace(installer: str, way: str, tmp_path: Path) -> None:
    found = installed(installer, way, tmp_path)
    assert "vgpurun-system" not in json.dumps([*found.values()])
    for kind in ("ServiceAccount", "DaemonSet", *(["ConfigMap"] if way == "device-plugin" else [])):
        assert [each["metadata"]["namespace"] for each in of_kind(found, kind)] == [NAMESPACE]
    made = [each["metadata"]["name"] for each in of_kind(found, "Namespace")]
    assert made == ([] if installer.startswith("helm") else [NAMESPACE])


def test_the_plugin_has_its_rights_and_writes_no_slices_of_other_nodes(installer: str, tmp_path: Path) -> None:
    found = installed(installer, "dra", tmp_path)
    (daemon_set,) = of_kind(found, "DaemonSet")
    account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    assert ("ServiceAccount", account) in found
    (binding,) = of_kind(found, "ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert ("ClusterRole", binding["roleRef"]["name"]) in found
    (policy,) = of_kind(found, "ValidatingAdmissionPolicy")
    (bound,) = of_kind(found, "ValidatingAdmissionPolicyBinding")
    assert bound["spec"]["policyName"] == policy["metadata"]["name"]
    plugin = {
        "username": f"system:serviceaccount:{NAMESPACE}:{account}",
        "extra": {"authentication.kubernetes.io/node-name": ["node-a"]},
    }
    assert refusals(policy, plugin, "node-a") == []
    (refused,) = refusals(policy, plugin, "node-b")
    assert "its own node" in refused
