"""Objects that kubectl and Helm install from examples/kubernetes, made by the programs themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from helm_program import helm
from support import CHECKOUT
from support.debian_packages import tool

FOLDER = CHECKOUT / "examples" / "kubernetes"
CHART = FOLDER / "chart"
Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    """Objects by kind and name."""
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def by_kubectl(folder: Path) -> Objects:
    """Return what `kubectl apply -k` applies. Raises UnavailableError."""
    kubectl = tool("kubectl", "kubernetes-client", release="trixie")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    return objects(done.stdout)


def by_overlay(folder: Path, ways: list[str], **settings: str) -> Objects:
    """Return what kubectl applies by a kustomization in `folder`, with settings over those of ours."""
    (folder / "ours").symlink_to(FOLDER)  # kustomize wants relative paths
    kinds = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    overlay = {**kinds, **settings, "resources": [f"ours/{way}" for way in ways]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return by_kubectl(folder)


def run_helm(
    version: str, *options: str, values: Mapping[str, Any] | None = None, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Run `helm template`. Raises UnavailableError."""
    command = [helm(version), "template", "vgpurun", chart, "--values", "-", *options]
    text = yaml.safe_dump(dict(values or {}))
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def by_helm(version: str, *options: str, values: Mapping[str, Any] | None = None, chart: Path = CHART) -> Objects:
    """Return what `helm install` installs. Raises UnavailableError."""
    done = run_helm(version, *options, values=values, chart=chart)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)
