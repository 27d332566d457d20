"""The lines of `vgpurun top`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import GIB, MIB, make_gpus

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views import top as top_view
from vgpurun.cli.views import top_details
from vgpurun.host.gpus import GpuUse
from vgpurun.inventory.programs import Program
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.limits.utilization import Utilization

GPUS = make_gpus(2)


def tenant(name: str, *devices: TenantDevice) -> Tenant:
    return Tenant("container", name, name, "image", Path("/none"), devices)


def device(gpu: int, memory_bytes: int, percent: float, quota: Quota) -> TenantDevice:
    reading = DeviceReading(GPUS[gpu].uuid, allocated_bytes=memory_bytes, utilization=Utilization(percent, percent, 1))
    return TenantDevice(GPUS[gpu], quota, reading)


REPORT = Report(
    ((GPUS[0], GpuUse(3 * GIB, 60)), (GPUS[1], GpuUse(GIB, None))),
    (
        tenant("small", device(0, 512 * MIB, 50, Quota(GIB, 50))),
        tenant("big-with-a-name-that-goes-on-and-on", device(0, 2 * GIB, 10, Quota(2 * GIB, None))),
        tenant("secret", TenantDevice(GPUS[1], Quota(GIB, 20), None)),
    ),
)


def words(sort: str = "gpu", width: int = 100) -> list[list[str]]:
    return [line.plain.replace("#", "").replace(".", "").split() for line in top_view.lines(REPORT, width, sort, True)]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("sort", top_view.SORTS)
def test_lines_fit_the_terminal(width: int, sort: str) -> None:
    assert all(len(line.plain) <= width for line in top_view.lines(REPORT, width, sort))


def test_a_wide_terminal_says_more() -> None:
    reading = DeviceReading(GPUS[0].uuid, throttled_ns=2_500_000_000, refusals=7)
    trains = Tenant(
        "container", "c1", "trains", "pytorch", Path("/none"), (TenantDevice(GPUS[0], Quota(GIB, 50), reading),),
        user="alice",
    )  # fmt: skip
    programs = {
        GPUS[0].uuid: {"c1": [Program(4711, "alice", "python", GIB)], "": [Program(99, "bob", "blender", 2 * GIB)]}
    }
    report = Report(((GPUS[0], GpuUse(3 * GIB, 60, 54, 311.6)),), (trains,), programs)
    whole, tenant_row, outside = (line.plain for line in top_view.lines(report, 200, "gpu", True)[1:])
    assert "54 C 312 W" in whole
    assert "alice    pytorch  python (4711)" in tenant_row and tenant_row.split()[-3:] == ["2.5", "s", "7"]
    assert "bob      blender (99)" in outside
    named = replace(report, tenants=(replace(trains, name="a" * 45),))
    assert "a" * 45 in top_view.lines(named, 200, "gpu", True)[2].plain
    assert f"{'a' * 29}~" in top_view.lines(named, 80, "gpu", True)[2].plain
    narrow = top_view.lines(report, 80, "gpu", True)
    assert "alice" not in narrow[2].plain and "REFUSED" not in narrow[0].plain


def test_free_room_is_said() -> None:
    capacity = GpuCapacity(GPUS[0], (), GIB)
    whole = top_view.rows(REPORT, "gpu", capacities={GPUS[0].uuid: capacity})[0]
    assert whole.what.startswith("free: ") and whole.what.endswith(", 100 %")


def test_a_filter_keeps_what_has_the_text_and_its_gpu() -> None:
    names = [row.name.strip() for row in top_view.rows(REPORT, "gpu", "SECR")]
    assert names == ["1: Test GPU", "secret"]
    assert [row.name.strip() for row in top_view.rows(REPORT, "memory", "nothing")] == []


def test_a_limit_that_is_not_there_is_said_as_everywhere() -> None:
    idle = tenant("idle", TenantDevice(GPUS[0], Quota(GIB, None), DeviceReading(GPUS[0].uuid)))
    (*_, row) = top_view.lines(Report(((GPUS[0], GpuUse(0, 0)),), (idle,)), 100, "gpu", True)
    assert row.plain.endswith(" no limit")


def test_by_gpu() -> None:
    rows = words()[1:]
    assert rows[0] == ["0:", "Test", "GPU", "3", "GiB", "/", "8", "GiB", "60%"]
    assert rows[1] == ["small", "512", "MiB", "/", "1", "GiB", "50", "/", "50%"]
    assert rows[2][1:] == ["2", "GiB", "/", "2", "GiB", "10%"]
    assert rows[3] == ["outside", "vgpurun", "512", "MiB", "?"]
    assert rows[4][:3] == ["1:", "Test", "GPU"]
    assert rows[5] == ["secret", "?", "/", "1", "GiB", "?", "/", "20%"]


def test_by_use() -> None:
    assert [row[0][:5] for row in words("memory")[3:]] == ["big-w", "small", "secre"]
    assert [row[0][:5] for row in words("compute")[3:]] == ["small", "big-w", "secre"]


def test_bars_show_how_much_of_the_limit_is_used() -> None:
    small, big = top_view.lines(REPORT, 100, "gpu", ascii_only=True)[2:4]
    memory, compute = (bar for bar in small.plain.split() if set(bar) <= {"#", "."})
    assert abs(memory.count("#") - len(memory) / 2) <= 1
    assert set(compute) == {"#"}
    styles = {str(span.style) for span in big.spans}
    assert "red" in styles and "red" not in {str(span.style) for span in small.spans}


def test_what_is_in_a_slice_is_shown_below_it_and_counts_once() -> None:
    part = TenantDevice(GPUS[0], Quota(4 * GIB, 30), DeviceReading(GPUS[0].uuid, allocated_bytes=GIB), is_part=True)
    whole = device(0, 3 * GIB, 20, Quota(4 * GIB, 30))
    member = Tenant("container", "m", "member", "image", Path("/none"), (part,), slice_name="s")
    of_slice = Tenant("slice", "slice:s", "slice s", "1 member", Path("/none"), (whole,))
    report = Report(((GPUS[0], GpuUse(3 * GIB, 60)),), (of_slice, member))
    rows = [line.plain.replace("#", "").replace(".", "") for line in top_view.lines(report, 100, "gpu", True)][2:]
    assert [row.split() for row in rows] == [
        ["slice", "s", "3", "GiB", "/", "4", "GiB", "20", "/", "30%"],
        ["member", "1", "GiB", "?"],
    ], "nothing is left outside of vgpurun"
    assert rows[1].startswith("    member")


def test_members_of_a_slice_stand_alike_with_limits_of_their_own_or_without() -> None:
    """Else the one without would seem to be the other's child."""
    whole = Tenant("slice", "slice:s", "slice s", "2 members", Path("/none"), (device(0, GIB, 20, Quota(4 * GIB, 30)),))
    own = device(0, GIB, 10, Quota(GIB, 10))
    part = Tenant("container", "p", "part", "image", Path("/none"), (own,), slice_name="s", within="slice s")
    member = replace(part, id="m", name="member", devices=(replace(own, is_part=True),), within="")
    lines = top_view.lines(Report(((GPUS[0], GpuUse(GIB, 60)),), (whole, part, member)), 100, "gpu", True)
    indents = [len(line.plain) - len(line.plain.lstrip()) for line in lines[2:]]
    assert indents == [2, 4, 4]


def test_held_launches_are_in_the_details() -> None:
    for limiter, expected in (("scheduler", False), ("launches", True), (None, False)):
        one = TenantDevice(GPUS[0], Quota(GIB, 50), DeviceReading(GPUS[0].uuid, limiter=limiter))
        holder = tenant("held", one)
        (*_, row) = top_view.rows(Report(((GPUS[0], GpuUse(0, 0)),), (holder,)), "gpu")
        assert ("launches are held" in "\n".join(top_details.details(row))) == expected


def test_paused_work_is_said_in_place_of_its_share() -> None:
    paused = Tenant(
        "container", "p", "held", "image", Path("/none"), (device(0, GIB, 20, Quota(4 * GIB, 30, paused=True)),)
    )
    (*_, row) = top_view.lines(Report(((GPUS[0], GpuUse(GIB, 60)),), (paused,)), 100, "gpu", True)
    assert row.plain.endswith(" paused") and "30%" not in row.plain
