"""When a compute limit holds and who goes first: the options, HAMi's variables, and what a plan makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import make_gpus

from vgpurun.errors import LimitError
from vgpurun.limits.limits_file import limits_bytes, read_limits
from vgpurun.limits.model import DeviceQuota, quotas_from_json, quotas_to_json
from vgpurun.limits.policies import Priority, SmPolicy, choose_policy, choose_priority
from vgpurun.limits.quota import Quota


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (None, None, SmPolicy.HARD),
        (None, "", SmPolicy.HARD),
        (None, "default", SmPolicy.BURST),
        (None, " Force ", SmPolicy.HARD),
        (None, "DISABLE", SmPolicy.OFF),
        (SmPolicy.BURST, "force", SmPolicy.BURST),
        (SmPolicy.HARD, "nonsense", SmPolicy.HARD),
    ],
)
def test_policy(option: SmPolicy | None, variable: str | None, expected: SmPolicy) -> None:
    environment = {} if variable is None else {"GPU_CORE_UTILIZATION_POLICY": variable}
    assert choose_policy(option, environment) is expected


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (None, None, Priority.HIGH),
        (None, "0", Priority.HIGH),
        (None, "1", Priority.LOW),
        (Priority.LOW, "0", Priority.LOW),
    ],
)
def test_priority(option: Priority | None, variable: str | None, expected: Priority) -> None:
    assert choose_priority(option, {} if variable is None else {"CUDA_TASK_PRIORITY": variable}) is expected


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(LimitError, match="GPU_CORE_UTILIZATION_POLICY=often"):
        choose_policy(None, {"GPU_CORE_UTILIZATION_POLICY": "often"})
    with pytest.raises(LimitError, match="CUDA_TASK_PRIORITY=2"):
        choose_priority(None, {"CUDA_TASK_PRIORITY": "2"})


QUOTA = Quota(1 << 30, 40, SmPolicy.BURST, Priority.LOW)


def test_the_label_keeps_them() -> None:
    gpu = make_gpus(1)[0]
    text = quotas_to_json([DeviceQuota(gpu, QUOTA)])
    assert quotas_from_json(text) == [(gpu.uuid, QUOTA)]
    old = [{key: value for key, value in json.loads(text)[0].items() if key not in ("sm_policy", "priority")}]
    assert quotas_from_json(json.dumps(old)) == [(gpu.uuid, Quota(1 << 30, 40))]


def test_the_limits_file_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    for quota in (QUOTA, Quota(None, None, SmPolicy.OFF, paused=True)):
        path.write_bytes(limits_bytes([("GPU-a", quota)]))
        assert read_limits(path) == [("GPU-a", quota)]
    content = bytearray(limits_bytes([("GPU-a", Quota())]))
    content[64 + 68 : 64 + 76] = b"\xff" * 8
    path.write_bytes(content)
    assert read_limits(path) == [("GPU-a", Quota(priority=Priority.LOW))], "unknown ones are the strictest"
