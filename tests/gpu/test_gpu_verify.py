"""`vgpurun verify` on a real GPU: everything that it tries to pass holds, by NVML's count."""

from __future__ import annotations

import json
import time
from typing import Any

import docker
import pytest
from runners import vgpurun

BESIDE = "beside another program"
LIMITS = ["--mem", "2g", "--sm", "50", "--seconds", "1.5"]


def verified(*image: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the result, and its checks by their names."""
    result = vgpurun(["verify", *LIMITS, "--format", "json", *image])
    assert result.stdout, result.stderr
    (found,) = json.loads(result.stdout)
    for check in found["checks"]:
        print(f"{check['status']:4}  {check['name']:31}  {check['what']}")
    assert found["passed"] and result.returncode == 0, result.stderr
    checks = {check["name"]: check for check in found["checks"]}
    # Else something other than the limit has refused.
    assert checks["memory: cuMemAlloc"]["used_bytes"] > 1900 << 20
    return found, checks


def test_limits_hold() -> None:
    found, checks = verified()
    assert found["image"] is None and checks["memory: an empty environment"]["status"] == "skip"


@pytest.mark.timeout(240)
def test_limits_hold_in_a_container(engine: docker.DockerClient, glibc_image: str) -> None:
    """An image with nothing but a C library is enough: the driver, the library and the trial come from this host."""
    began_s = int(time.time())
    found, checks = verified(glibc_image)
    has_records = f"GPU time: {BESIDE}" in checks  # root has them, in the host's PID namespace
    not_ok = {name: check["what"] for name, check in checks.items() if check["status"] != "ok"}
    assert not_ok.keys() == (set() if has_records else {"GPU time: by its own records"}), not_ok
    assert found["image"] == glibc_image
    assert checks["memory: an empty environment"]["used_bytes"] > 1900 << 20
    assert 45 < checks["compute: launches"]["share_percent"] < 55
    happened = engine.events(since=began_s, until=int(time.time()) + 1, filters={"type": "container"}, decode=True)
    actions: dict[str, set[str]] = {}
    for event in happened:
        attributes = event["Actor"]["Attributes"]
        if attributes["image"] == glibc_image and attributes["name"].startswith("vgpurun-verify-"):
            actions.setdefault(event["Actor"]["ID"], set()).add(event["Action"])
    # For memory, for an empty environment, for work without a limit and with it, and the latter beside another program.
    assert len(actions) == 4 + has_records and all({"start", "die", "destroy"} <= each for each in actions.values()), (
        actions
    )
    assert engine.containers.list(all=True, filters={"ancestor": glibc_image}) == []


def test_doctor_finds_the_gpu() -> None:
    found = {each["name"]: each for each in json.loads(vgpurun(["doctor", "--format", "json"]).stdout)}
    assert found["driver"]["status"] == "ok" and found["library"]["status"] == "ok"
    assert any(name.startswith("GPU ") for name in found)
