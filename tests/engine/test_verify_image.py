"""`vgpurun verify IMAGE`: the trial in a real container, judged from the host."""

from __future__ import annotations

import json

from cli import Cli


def test_limits_hold_in_a_container(vgpurun: Cli, debian: str) -> None:
    limits = ("--mem", "1200m", "--sm", "50", "--seconds", "0.7")
    result = vgpurun("verify", *vgpurun.driver, *limits, "--format", "json", debian, timeout_s=110)
    assert result.exit_code == 0, result
    checks = {check["name"]: check for check in json.loads(result.stdout)[0]["checks"]}
    empty = checks["memory: an empty environment"]
    assert empty["status"] == "ok" and (1200 << 20) - (4 << 20) <= empty["used_bytes"] <= 1200 << 20
    assert checks["memory: two processes"]["status"] == "ok"
    vgpurun.assert_nothing_left()
