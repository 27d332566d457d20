"""How `vgpurun smi` shows readings."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import Terminal, make_gpus

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views import free as free_view
from vgpurun.cli.views import smi as smi_view
from vgpurun.cli.views import smi_json
from vgpurun.host.gpus import GpuUse
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import NOT_ENFORCED, DeviceReading
from vgpurun.limits.utilization import Utilization

MIB = 1 << 20
GPU = make_gpus(1)[0]
FREE = {GPU.uuid: GpuCapacity(GPU, (), 1000 * MIB)}


def report(reading: DeviceReading | None) -> Report:
    device = TenantDevice(GPU, Quota(2048 * MIB, 50), reading)
    tenant = Tenant("container", "0123", "train", "pytorch", Path("/none"), (device,))
    return Report(((GPU, GpuUse(1000 * MIB, 7)),), (tenant,))


READING = DeviceReading(
    "GPU-a", allocated_bytes=300 * MIB, overhead_bytes=538 * MIB, context_bytes=518 * MIB, processes=1
)


def test_memory_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    smi_view.print_table(report(READING), FREE)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-2] == ["MEMORY", "OF", "GPU", "ALLOCATED", "CONTEXTS", "MODULES,", "OTHER"]
    assert lines[-1] == ["train", "0", "300", "MiB", "518", "MiB", "20", "MiB"]


def test_what_is_free_is_in_the_line_of_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    smi_view.print_table(report(READING), FREE)
    assert "free: " in capsys.readouterr().out.splitlines()[1]
    (gpu,) = smi_json.to_json(report(READING), FREE)["gpus"]
    assert (gpu["memory_free_bytes"], gpu["sm_free_percent"]) == (FREE[GPU.uuid].free_bytes, 100)


def test_a_terminal_of_80_columns_has_room_for_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """smi cuts long names, and shows no images; the list of what is free does without the GPU's name."""
    gpu = replace(GPU, name="NVIDIA H100 80GB HBM3", memory_bytes=81559 * MIB)
    device = TenantDevice(gpu, Quota(20480 * MIB, 70), DeviceReading("GPU-a", refusals=12, allocated_bytes=10**10))
    tenant = Tenant(
        "container", "0123", "a-name-that-goes-on-and-on-and-on", "registry/some/image", Path("/"), (device,)
    )
    whole = Report(((gpu, GpuUse(81559 * MIB, 100)),), (replace(tenant, user="a-long-user-name"),))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # no colours
    with redirect_stdout(Terminal()) as terminal:
        smi_view.print_table(whole, {gpu.uuid: GpuCapacity(gpu, (), 0)})
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80 and any(line.endswith("REFUSED") for line in lines[:2])
    assert [line for line in lines if line.startswith("   a-name-that-g") and line.endswith(" 12")]
    assert lines[1].startswith("0: NVIDIA H100 80GB") and lines[2] == "   free: 79.65 GiB, 100 %"
    quota = Quota(66199 * MIB, 100)
    without, narrow, wide = (
        free_view.table([GpuCapacity(gpu, (), 1010 * MIB)], [quota], width) for width in (78, 80, 100)
    )
    assert max(map(len, narrow)) <= 80 and narrow[1].endswith("--mem 66199m --sm 100")
    assert "H100" in wide[1] and "NAME" in narrow[0] and "NAME" not in without[0]


def test_compute_over_each_window(capsys: pytest.CaptureFixture[str]) -> None:
    busy = replace(READING, utilization=Utilization(49.6, 30, 5), launches=12345, throttled_ns=2_560_000_000)
    smi_view.print_table(report(busy), FREE)
    output = capsys.readouterr().out
    assert "50 % / 50 %" in output
    assert ["train", "0", "50", "%", "30", "%", "5", "%", "12345", "2.6", "s"] in [
        line.split() for line in output.splitlines()
    ]
    device = smi_json.to_json(report(busy), FREE)["containers"][0]["devices"][0]
    assert [device[f"sm_used_{window}percent"] for window in ("", "10s_", "60s_")] == [49.6, 30, 5]


def test_host_memory_is_shown_where_there_is_any(capsys: pytest.CaptureFixture[str]) -> None:
    smi_view.print_table(report(DeviceReading("GPU-a", allocated_bytes=MIB, host_bytes=77 * MIB, processes=1)), FREE)
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["77", "MiB"]


@pytest.mark.parametrize("name", NOT_ENFORCED)
def test_what_could_not_be_enforced_is_a_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    smi_view.print_table(report(DeviceReading("GPU-a", not_enforced=(name,))), FREE)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("train, GPU 0: ") and "NOT ENFORCED" in last


def test_held_launches_are_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that the scheduler holds, as most are, has no line."""
    smi_view.print_table(report(replace(READING, limiter="scheduler")), FREE)
    usual = capsys.readouterr().out
    smi_view.print_table(report(replace(READING, limiter="launches")), FREE)
    said = capsys.readouterr().out
    assert said.startswith(usual) and said.removeprefix(usual).startswith("train, GPU 0: launches are held")


def test_json() -> None:
    device = smi_json.to_json(report(READING), FREE)["containers"][0]["devices"][0]
    assert device["memory_allocated_bytes"] == 300 * MIB and device["memory_context_bytes"] == 518 * MIB
    assert device["memory_overhead_bytes"] == 538 * MIB and device["memory_host_bytes"] == 0
    assert device["not_enforced"] == [] and device["limiter"] is None
    unknown = smi_json.to_json(report(None), FREE)["containers"][0]["devices"][0]
    assert unknown["memory_allocated_bytes"] is None and unknown["not_enforced"] is None


def test_nonsense_in_the_file_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    most = 2**64 - 1
    smi_view.print_table(report(DeviceReading("GPU-a", most, most, most, most, processes=1)), FREE)
    assert "8 GiB" in capsys.readouterr().out.splitlines()[-1]


def test_what_programs_see_beyond_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(READING)
    device = replace(shown.tenants[0].devices[0], quota=Quota(2048 * MIB, virtual_bytes=8192 * MIB))
    oversubscribed = Report(shown.gpus, (replace(shown.tenants[0], devices=(device,)),))
    smi_view.print_table(oversubscribed, FREE)
    assert "838 MiB / 2 GiB, seen as 8 GiB" in capsys.readouterr().out
    described = smi_json.to_json(oversubscribed, FREE)["containers"][0]["devices"][0]
    assert (described["memory_limit_bytes"], described["memory_shown_bytes"]) == (2048 * MIB, 8192 * MIB)
