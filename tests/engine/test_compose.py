"""`vgpurun convert` beside docker compose itself, which says what a file means."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.debian_packages import unpacked
from vgpurun.compose import nodes
from vgpurun.compose.convert import convert
from vgpurun.compose.findings import services

NAME = "vgpurun.io/gpu=shop-a"


@pytest.fixture(scope="session")
def compose() -> Path:
    """Knows `gpus:`, which older ones do not."""
    return unpacked("docker-compose", "sid") / "usr/libexec/docker/cli-plugins/docker-compose"


def config(compose: Path, path: Path) -> Any:
    """Return the services as docker compose reads them, or None where it refuses the file."""
    command = [compose, "-f", path, "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env={"HOME": str(path.parent)})
    return json.loads(done.stdout)["services"] if done.returncode == 0 else None


def service(text: str) -> str:
    return "name: shop\nservices:\n  a:\n    image: x\n" + "".join(f"    {line}\n" for line in text.splitlines())


def chosen(devices: list[dict[str, Any]]) -> list[str]:
    """Return what requests ask for, as docker compose has them."""
    return [",".join(each.get("device_ids", ())) or str(each.get("count", 0)).replace("-1", "all") for each in devices]


GPUS = (
    "all", '"all"', "[]", "[{}]", "[{count: all}]", "[{count: All}]", "[{count: -1}]", '[{count: "2"}]', "[{count: 1}]",
    "\n  - driver: nvidia\n    count: 1\n    capabilities: [compute, utility]", "[{driver: amd}]", "[{count: 0}]",
    '[{device_ids: ["0", GPU-7], options: {memory: 8g}}]', "[{options: [memory=8g]}]",
    "[{count: 1}, {device_ids: [a]}]", "[{driver: cdi, device_ids: [nvidia.com/gpu=0]}]",
)  # fmt: skip


@pytest.mark.parametrize("gpus", GPUS)
def test_gpus_are_read_as_docker_compose_reads_them(compose: Path, tmp_path: Path, gpus: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(service(f"gpus: {gpus}"))
    wanted = [each for each in config(compose, path)["a"].get("gpus", []) if each.get("driver") != "amd"]
    (found,) = services(nodes.read(path)[1])
    assert [",".join(each.names) or each.count for each in found.requests] == chosen(wanted)
    assert ("options.memory: 8g" in str(found.findings)) == any(each.get("options") for each in wanted)


@pytest.mark.parametrize("gpus", ["2", "-1", "some", "[all]", "[{count: some}]", "[{memory: 8g}]"])
def test_what_docker_compose_makes_of_other_gpus_is_known(compose: Path, tmp_path: Path, gpus: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(service(f"gpus: {gpus}"))
    described = config(compose, path)
    if gpus == "[{memory: 8g}]":
        assert "8g" not in str(described)
        assert "docker compose drops it" in str(convert(path).found)
    else:
        assert described is None


RESERVED = "deploy:\n  resources:\n    reservations:\n      devices:\n        - "


@pytest.mark.parametrize(
    "text",
    [
        "gpus: all",
        "gpus:\n  - device_ids: ['0']\n  - device_ids: ['1']",
        "gpus: [{driver: nvidia, count: 2, options: {vram: 1g}}]",
        f"{RESERVED}driver: nvidia\n          count: 2\n          capabilities: [gpu]\n          options: {{sm: 20}}",
        f"{RESERVED}capabilities: [nvidia, compute]",
        f"{RESERVED}{{driver: nvidia, device_ids: ['0'], capabilities: [gpu]}}\ngpus: [{{device_ids: ['1']}}]",
        f"{RESERVED}{{driver: cdi, device_ids: [nvidia.com/gpu=all], capabilities: [gpu]}}",
        "devices: [nvidia.com/gpu=0]",
        "runtime: nvidia",
    ],
)
def test_docker_compose_finds_a_slice_and_no_whole_gpu_beside_it(compose: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(service(f"command: [a, b]\n{text}\nenvironment:\n  VRAM_LIMIT: 1g\n  A: $$1"))
    before = config(compose, path)["a"]
    converted = convert(path)
    path.write_text(converted.text)
    after = config(compose, path)["a"]
    assert after.pop("deploy")["resources"]["reservations"]["devices"] == [
        {"capabilities": after_capabilities(before), "driver": "cdi", "device_ids": [NAME]}
    ]
    assert before["environment"].pop("VRAM_LIMIT") == "1g"
    assert after == {
        name: each for name, each in before.items() if name not in ("deploy", "gpus", "devices", "runtime")
    }


def after_capabilities(before: Any) -> list[str]:
    """Return those of the request, which stay; they choose nothing, as there is a driver."""
    devices = before.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    return devices[0]["capabilities"] if devices else ["gpu"]


def test_nothing_that_docker_compose_inserts_becomes_an_option(compose: Path, tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(service("gpus: [{count: '${GPUS-1}'}]\nenvironment: ['VRAM_LIMIT=${VRAM-1g}']"))
    assert config(compose, path)["a"]["gpus"] == [{"count": 1}]
    converted = convert(path)
    assert (converted.text, list(converted.commands)) == (path.read_text(), [])
    assert ["Compose inserts a value" in line for line in converted.by_hand] == [True, True]


def test_who_shares_a_slice_has_it_for_docker_compose_too(compose: Path, tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(
        "name: shop\nx-gpu: &gpu\n  deploy: &deploy\n    resources:\n      reservations:\n        devices:\n"
        "          - {driver: nvidia, count: 1, capabilities: [gpu], options: {memory: 1g}}\n"
        "services:\n  a: {image: x, <<: *gpu}\n  b: {image: x, deploy: *deploy}\n  c: {extends: a}\n  d: {image: x}\n"
    )
    converted = convert(path)
    assert [each.partition(" share")[0] for each in converted.shared] == ["Services a, b and c"]
    path.write_text(converted.text)
    described = config(compose, path)
    for name in "abc":
        (device,) = described[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [NAME]
    assert "deploy" not in described["d"]


def test_only_what_has_limits_changes_for_docker_compose(compose: Path, tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    text = """\
---
name: shop
x-job: &job
  image: "x"  # pinned
  environment: &env {LANG: C, TZ: 'UTC'}
  healthcheck:
    test: ["CMD", "true"]

services:
  # The model.
  a:
    <<: *job
    gpus: all
    environment: {<<: *env, VRAM_LIMIT: 1g}

  # The rest.
  b:
    <<: *job
    gpus: [{count: 1}]
    command: >-
      sleep
      1
    ports:
      - "80:80"  # web
    environment: *env
    labels: !reset null
"""
    path.write_text(text)
    before = config(compose, path)
    path.write_text(convert(path).text)
    after = config(compose, path)
    assert after["b"] == before["b"]
    assert (after["a"].pop("deploy"), before["a"].pop("gpus")) != (None, None)
    assert before["a"]["environment"].pop("VRAM_LIMIT") == "1g"
    assert after["a"] == before["a"]
    kept = [line for line in text.splitlines() if "gpus: all" not in line and "VRAM" not in line]
    written = path.read_text().splitlines()
    assert [line for line in written if line in kept] == kept
