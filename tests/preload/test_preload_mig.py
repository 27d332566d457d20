"""A MIG instance is a device like another: limits go with its UUID, in CUDA, in NVML and on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from sandbox import Sandbox

from cuda_driver import Driver, byref, c_uint64
from support.programs import text_of
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota

GIB = 1 << 30
CARD = "GPU-51a00000-0000-4000-9000-000000000001"
SMALL, LARGE = (f"MIG-{os.getpid():08x}-1111-0000-0000-00000000000{number}" for number in (1, 2))
MACHINE = f"""
devices:
  - memory_mib: 8192
  - name: Simulated GPU MIG 1g.10gb
    uuid: {SMALL}
    mig_gpu: 1
    memory_mib: 10240
  - name: Simulated GPU MIG 2g.20gb
    uuid: {LARGE}
    mig_gpu: 1
    memory_mib: 20480
"""


def fill_and_tell() -> None:
    """Fill an instance and print how it and its card, whose UUID is the argument, look then."""
    d = Driver.started()
    held = 0
    while d.result("cuMemAlloc_v2", byref(c_uint64()), 256 << 20) == "CUDA_SUCCESS":
        held += 256
    pynvml.nvmlInit()
    cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    card = next(each for each in cards if pynvml.nvmlDeviceGetUUID(each) == sys.argv[1])
    instances = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index) for index in range(2)]
    nvml = {pynvml.nvmlDeviceGetUUID(each): pynvml.nvmlDeviceGetMemoryInfo(each) for each in instances}
    uuid = d.device_uuid(0).replace("GPU-", "MIG-")
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(instances[list(nvml).index(uuid)])
    found = {
        "count": d.device_count(),
        "uuid": uuid,
        "held_mib": held,
        "total": d.mem_get_info()[1],
        "nvml_total": nvml[uuid].total,
        "nvml_used": nvml[uuid].used,
        "card_total": pynvml.nvmlDeviceGetMemoryInfo(card).total,
        "processes": [[each.pid == os.getpid(), each.usedGpuMemory == nvml[uuid].used] for each in listed],
    }
    print(json.dumps(found))


PROGRAM = [sys.executable, "-c", text_of(fill_and_tell), CARD]


@pytest.fixture
def machine(sandbox: Sandbox) -> Sandbox:
    """A GPU as it is, and one in MIG mode with two instances."""
    (sandbox.folder / "sim.yaml").write_text(MACHINE)
    return sandbox


def fill(machine: Sandbox, **variables: str) -> dict[str, object]:
    result = machine.run(PROGRAM, **variables)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout), stderr=result.stderr)


@pytest.mark.parametrize(("named", "limit_gib"), [(SMALL, 1), (LARGE, 2), (None, 1)], ids=["small", "large", "first"])
def test_limits_in_a_file_are_the_instances(machine: Sandbox, named: str | None, limit_gib: int) -> None:
    limits = machine.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(LARGE, Quota(2 * GIB)), (SMALL, Quota(GIB))]))
    visible = {"CUDA_VISIBLE_DEVICES": named} if named else {}
    seen = fill(machine, VGPURUN_LIMITS_FILE=str(limits), **visible)
    assert (seen["count"], seen["uuid"]) == (1, named or SMALL), "of several a program has the first"
    assert seen["total"] == seen["nvml_total"] == limit_gib * GIB
    assert seen["held_mib"] == (limit_gib * 1024 - 518) // 256 * 256, "518 MiB are the context's"
    assert seen["nvml_used"] == (int(str(seen["held_mib"])) + 518) << 20
    assert seen["processes"] == [[True, True]]
    assert seen["card_total"] == 30 * GIB, "the card is nobody's device: what it has is not hidden"
    assert "not granted" not in str(seen["stderr"])


def test_an_instance_that_is_not_in_the_file_is_nobodys(machine: Sandbox) -> None:
    limits = machine.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(LARGE, Quota(2 * GIB))]))
    result = machine.run(PROGRAM, VGPURUN_LIMITS_FILE=str(limits), CUDA_VISIBLE_DEVICES=SMALL)
    assert result.returncode != 0 and f"{SMALL} was not granted" in result.stderr


def test_a_limit_in_a_variable_is_that_of_the_one_instance(machine: Sandbox) -> None:
    seen = fill(machine, CUDA_VISIBLE_DEVICES=LARGE, CUDA_DEVICE_MEMORY_LIMIT_0="1g")
    assert (seen["uuid"], seen["total"]) == (LARGE, GIB)


@pytest.mark.slow
class TestCommandLine:
    """`vgpurun local` and what shows devices, on the same machine."""

    @pytest.fixture
    def environment(self, machine: Sandbox, tmp_path: Path) -> dict[str, str]:
        kept = ("PATH", "VGPUSIM_CONFIG", "VGPUSIM_STATE", "PYTHONPATH")
        return {name: value for name, value in machine.environment.items() if name in kept} | {
            "VGPURUN_STATE_DIR": str(tmp_path / "vgpurun"),
            "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
            "HOME": str(tmp_path),
            "VGPURUN_DRIVER": "sim",
        }

    @staticmethod
    def vgpurun(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vgpurun", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    @pytest.mark.parametrize("name", ["1:1", f"device={LARGE}"], ids=["number", "UUID"])
    def test_an_instance_by_name(self, environment: dict[str, str], name: str) -> None:
        result = self.vgpurun(environment, "local", "--gpus", name, "--mem", "2g", "--", *PROGRAM)
        assert result.returncode == 0, result.stderr
        seen = json.loads(result.stdout)
        assert (seen["uuid"], seen["total"], seen["nvml_total"]) == (LARGE, 2 * GIB, 2 * GIB)

    def test_a_limit_is_the_instances(self, environment: dict[str, str]) -> None:
        result = self.vgpurun(environment, "local", "--gpus", "1:0", "--mem", "12g", "true")
        assert result.returncode == 125 and "more than GPU 1:0 has (10 GiB)" in result.stderr
        result = self.vgpurun(environment, "local", "--mem", "12g", "printenv", "CUDA_VISIBLE_DEVICES")
        assert result.stdout == f"{LARGE}\n", "the only device with so much"

    def test_what_shows_devices_shows_instances(self, environment: dict[str, str]) -> None:
        doctor = json.loads(self.vgpurun(environment, "doctor", "--driver", "sim", "--format", "json").stdout)
        assert "GPU 1:1" in json.dumps(doctor)
        report = json.loads(self.vgpurun(environment, "smi", "--format", "json").stdout)
        found = [(gpu["index"], gpu["mig_index"], gpu["memory_total_bytes"] // GIB) for gpu in report["gpus"]]
        assert found == [(0, None, 8), (1, 0, 10), (1, 1, 20)]
        assert "1:0: Simulated GPU MIG 1g.10gb" in self.vgpurun(environment, "smi").stdout
