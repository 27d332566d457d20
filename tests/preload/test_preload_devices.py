"""Limits go with the device, however CUDA numbers it: by UUID, in every form of the variables that number and hide."""

from __future__ import annotations

import json

import pynvml
import pytest
from sandbox import Sandbox

from cuda_driver import Driver, byref, c_uint64
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota

GIB = 1 << 30
# By PCI bus A, B, C; the fastest is B, then A.
DEVICES = {"A": (100, 2), "B": (132, 4), "C": (50, 1)}  # multiprocessors, and the limit in GiB
UUIDS = {
    "A": "GPU-12345678-aaaa-0000-0000-000000000000",
    "B": "GPU-12345678-bbbb-0000-0000-000000000000",
    "C": "GPU-99999999-cccc-0000-0000-000000000000",
}
BY_INDEX = {f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{DEVICES[name][1]}g" for index, name in enumerate(DEVICES)}


def fill_each_device() -> None:
    """Print of each device what it says of its memory, and what it grants."""

    d = Driver()
    if d.result("cuInit", 0) != "CUDA_SUCCESS":
        print("[]")
        return
    pynvml.nvmlInit()
    seen = []
    for ordinal in range(d.device_count()):
        d.primary_context(ordinal)
        uuid = d.device_uuid(ordinal)
        held = 0
        while d.result("cuMemAlloc_v2", byref(c_uint64()), 256 << 20) == "CUDA_SUCCESS":
            held += 256
        nvml = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        totals = sorted({d.device_total_mem(ordinal), d.mem_get_info()[1], nvml.total})
        seen.append([uuid, totals, nvml.used >> 20, held])
    print(json.dumps(seen))


FORMS = [
    ({}, "BAC"),
    ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "BAC"),
    ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "ABC"),
    ({"CUDA_VISIBLE_DEVICES": "0"}, "B"),
    ({"CUDA_VISIBLE_DEVICES": "2,0"}, "CB"),
    ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "A"),
    ({"CUDA_VISIBLE_DEVICES": "2,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "CB"),
    ({"CUDA_VISIBLE_DEVICES": UUIDS["A"]}, "A"),
    ({"CUDA_VISIBLE_DEVICES": f"{UUIDS['C']},{UUIDS['A']}"}, "CA"),
    ({"CUDA_VISIBLE_DEVICES": "GPU-12345678-b,GPU-9"}, "BC"),
    ({"CUDA_VISIBLE_DEVICES": "GPU-9,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "CB"),
    ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, "A"),  # an unknown device ends the list
    ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, "A"),
    ({"CUDA_VISIBLE_DEVICES": ""}, ""),
    ({"CUDA_VISIBLE_DEVICES": "-1"}, ""),
    ({"CUDA_VISIBLE_DEVICES": "7"}, ""),
    ({"CUDA_VISIBLE_DEVICES": "0,0"}, ""),
    ({"CUDA_VISIBLE_DEVICES": "GPU-12345678"}, ""),  # two devices
    ({"CUDA_VISIBLE_DEVICES": "MIG-12345678-aaaa-0000-0000-000000000000"}, ""),
    ({"CUDA_VISIBLE_DEVICES": f"MIG-{UUIDS['A']}/1/0"}, ""),
]


@pytest.fixture
def machine(sandbox: Sandbox) -> Sandbox:
    """Three unlike GPUs."""
    lines = ["devices:"]
    for name, (multiprocessors, _) in DEVICES.items():
        lines += [f"  - uuid: {UUIDS[name]}", f"    multiprocessors: {multiprocessors}", "    memory_mib: 8192"]
    (sandbox.folder / "sim.yaml").write_text("\n".join(lines) + "\n")
    return sandbox


@pytest.mark.parametrize("source", ["file", "variables"])
@pytest.mark.parametrize(("variables", "names"), FORMS)
def test_limits_go_with_the_device(machine: Sandbox, variables: dict[str, str], names: str, source: str) -> None:
    limits = machine.folder / "limits"
    limits.write_bytes(limits_file.limits_bytes([(UUIDS[name], Quota(DEVICES[name][1] * GIB)) for name in DEVICES]))
    given = {"VGPURUN_LIMITS_FILE": str(limits)} if source == "file" else BY_INDEX
    seen = json.loads(machine.python(fill_each_device, **given, **variables))
    expected = []
    for name in names:
        limit_mib = DEVICES[name][1] * 1024
        held_mib = (limit_mib - 518) // 256 * 256
        expected.append([UUIDS[name], [limit_mib << 20], held_mib + 518, held_mib])
    assert seen == expected


@pytest.mark.parametrize(
    ("may_disable", "asked", "is_limited"),
    [(True, "true", False), (True, "TRUE", False), (True, "false", True), (True, "", True), (False, "true", True)],
)
def test_a_program_lifts_its_limits_only_where_the_file_allows_it(
    machine: Sandbox, may_disable: bool, asked: str, is_limited: bool
) -> None:
    """HAMi's CUDA_DISABLE_CONTROL; who writes the limits file decides."""
    limits = machine.folder / "limits"
    quotas = [(UUIDS[name], Quota(GIB)) for name in DEVICES]
    limits.write_bytes(limits_file.limits_bytes(quotas, may_disable))

    def program() -> None:
        d = Driver.started()
        print(d.mem_get_info()[1] >> 30)

    seen = machine.python(program, VGPURUN_LIMITS_FILE=str(limits), CUDA_DISABLE_CONTROL=asked)
    assert seen == ("1" if is_limited else "8")
