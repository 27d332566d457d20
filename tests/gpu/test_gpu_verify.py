"""`vgpurun verify` on a real GPU: everything that it tries to pass holds, by NVML's count."""

from __future__ import annotations

import json

from runners import vgpurun


def test_limits_hold() -> None:
    result = vgpurun(["verify", "--mem", "2g", "--sm", "50", "--seconds", "1.5", "--format", "json"])
    assert result.stdout, result.stderr
    (found,) = json.loads(result.stdout)
    wrong = [f"{check['name']}: {check['what']}" for check in found["checks"] if check["status"] == "fail"]
    assert wrong == [] and result.returncode == 0
    used = [check["used_bytes"] for check in found["checks"] if check["name"] == "memory: cuMemAlloc"]
    assert used and used[0] > 1900 << 20  # else something other than the limit has refused


def test_doctor_finds_the_gpu() -> None:
    found = {each["name"]: each for each in json.loads(vgpurun(["doctor", "--format", "json"]).stdout)}
    assert found["driver"]["status"] == "ok" and found["library"]["status"] == "ok"
    assert any(name.startswith("GPU ") for name in found)
