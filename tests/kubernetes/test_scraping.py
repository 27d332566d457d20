"""Prometheus finds the node agents: by the Service, by the PodMonitor, and by the configuration that is an example."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm_program import PACKAGES
from installs import Objects, by_helm, by_overlay
from support import CHECKOUT
from support.debian_packages import tool

WAYS = ["dra", "device-plugin"]
CONFIGURATION = CHECKOUT / "examples" / "monitoring" / "prometheus-kubernetes.yml"


def kubectl(way: str, folder: Path) -> Objects:
    return by_overlay(folder, [way, "monitoring"], namespace="gpu-tools")


def helm(way: str, version: str) -> Objects:
    values = {"way": way, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
    return by_helm(version, "--namespace", "gpu-tools", values=values)


def of_kind(found: Objects, kind: str) -> dict[str, Any]:
    (one,) = (each for (its_kind, _), each in found.items() if its_kind == kind)
    return one


def ports_of(pod: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for each in pod["spec"]["containers"] for port in each["ports"]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("installer", ["kubectl", *PACKAGES])
def test_service_and_monitor_lead_to_the_agents(installer: str, way: str, tmp_path: Path) -> None:
    found = kubectl(way, tmp_path) if installer == "kubectl" else helm(way, installer)
    service, monitor = of_kind(found, "Service"), of_kind(found, "PodMonitor")
    assert service["metadata"]["namespace"] == monitor["metadata"]["namespace"] == "gpu-tools"
    pod = of_kind(found, "DaemonSet")["spec"]["template"]
    labels, ports = pod["metadata"]["labels"].items(), ports_of(pod)
    assert service["spec"]["selector"].items() <= labels
    (port,) = service["spec"]["ports"]
    assert port["port"] == ports[port["targetPort"]] == int(service["metadata"]["annotations"]["prometheus.io/port"])
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert ports[endpoint["port"]] == port["port"]
    assert monitor["metadata"].get("labels", {}) == ({} if installer == "kubectl" else {"release": "prometheus"})


def test_helm_makes_no_monitor_unasked() -> None:
    """Its kind is not there without the operator, and helm would install nothing."""
    for version in PACKAGES:
        assert not any(kind == "PodMonitor" for kind, _ in by_helm(version))


@pytest.mark.parametrize("way", WAYS)
def test_prometheus_finds_the_agents_in_a_cluster(way: str, tmp_path: Path) -> None:
    """Debian's Prometheus does not know of Kubernetes: it is told what it would find there, a target for each port."""
    pod = of_kind(kubectl(way, tmp_path), "DaemonSet")["spec"]["template"]
    (job,) = yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]
    assert job["honor_labels"]
    (discovery,) = job.pop("kubernetes_sd_configs")
    assert discovery["role"] == "pod"
    (selector,) = discovery["selectors"]
    assert tuple(selector["label"].split("=")) in pod["metadata"]["labels"].items()
    ports = ports_of(pod)
    assert len(ports) == 2
    meta = "__meta_kubernetes_pod"
    job["static_configs"] = [
        {
            "targets": [f"10.0.0.7:{port}"],
            "labels": {f"{meta}_container_port_name": name, f"{meta}_node_name": "node-a"},
        }
        for name, port in ports.items()
    ]
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    command = [tool("promtool", "prometheus"), "check", "service-discovery", "--timeout=5s", file, job["job_name"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    targets = [each["labels"] for each in json.loads(done.stdout) if each.get("labels")]
    assert [(each["__address__"], each["node"]) for each in targets] == [("10.0.0.7:9487", "node-a")]
