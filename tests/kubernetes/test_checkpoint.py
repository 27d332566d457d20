"""kubelet's record, in the forms that it has had, and what can be told from it of an admission that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vgpurun.kubernetes.checkpoint import Holding, read_holdings
from vgpurun.kubernetes.device_plugin.admission import Admission
from vgpurun.kubernetes.device_plugin.units import Kind, Resource
from vgpurun.limits.quota import Quota

GIB = 1 << 30
MEMORY = Resource("m", Kind.MEMORY, Quota(memory_bytes=GIB), {"A": 8, "B": 8})
COMPUTE = Resource("c", Kind.COMPUTE, Quota(sm_percent=1), {"A": 100, "B": 100})


def written(tmp_path: Path, *entries: tuple[str, str, str, Any]) -> Path:
    keys = ("PodUID", "ContainerName", "ResourceName", "DeviceIDs")
    content = {"PodDeviceEntries": [dict(zip(keys, entry, strict=True)) for entry in entries], "RegisteredDevices": {}}
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": content, "Checksum": 1}))
    return path


def test_devices_of_all_numa_nodes_are_the_containers(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        ("pod", "one", "m", {"0": ["A_0"], "1": ["A_0", "B_1"], "-1": None}),
        ("pod", "one", "c", {"-1": ["A_5"]}),
        ("pod", "two", "m", ["A_7"]),  # before Kubernetes 1.20
    )
    assert read_holdings(path) == [
        Holding("pod", "one", {"m": frozenset({"A_0", "B_1"}), "c": frozenset({"A_5"})}),
        Holding("pod", "two", {"m": frozenset({"A_7"})}),
    ]


def test_no_record_yet(tmp_path: Path) -> None:
    assert read_holdings(tmp_path / "none") == []
    path = written(tmp_path)
    path.write_text('{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1}')
    assert read_holdings(path) == []


def test_what_is_not_in_the_record_yet_is_of_the_container_that_is_admitted_now() -> None:
    record: list[Holding] = []
    now_s = 0.0
    admission = Admission(lambda: record, lambda: now_s)
    assert admission.gpu_for(MEMORY) is None
    admission.given(MEMORY, ["A_0", "A_1"], "A")
    assert (admission.gpu_for(COMPUTE), admission.gpu_for(MEMORY)) == ("A", None)
    record.append(Holding("pod", "one", {"m": frozenset({"A_0", "A_1"})}))
    assert admission.gpu_for(COMPUTE) is None  # it had asked for memory alone
    # The next container of the pod takes over the units of the first.
    admission.given(MEMORY, ["A_1", "A_0"], "A")
    assert admission.gpu_for(COMPUTE) == "A"
    record.append(Holding("pod", "two", {"m": frozenset({"A_0", "A_1"})}))
    assert admission.gpu_for(COMPUTE) is None
    admission.given(COMPUTE, ["B_0"], "B")
    assert admission.gpu_for(MEMORY) == "B"
    now_s = 31  # its pod was refused for another reason
    assert admission.gpu_for(MEMORY) is None
