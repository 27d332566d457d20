"""The containers that `vgpurun ps` shows, and what it says of them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import GIB, MIB, make_gpus

from vgpurun.cli.views import ps as ps_view
from vgpurun.engine.client import VgpurunContainer
from vgpurun.engine.labels import Record
from vgpurun.errors import OptionError
from vgpurun.inventory import listing
from vgpurun.inventory.usage import Tenant, TenantDevice
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.limits.utilization import Utilization

GPUS = make_gpus(2)
CONTAINER = VgpurunContainer(
    "0123456789abcdef", "train", "pytorch:2", "running", Record("/none", user="ann"),
    command="python a-long-program.py", created_s=1_700_000_000, described="Up 5 minutes",
    labels={"team": "vision", "empty": ""},
)  # fmt: skip
READING = DeviceReading(GPUS[1].uuid, allocated_bytes=500 * MIB, utilization=Utilization(49.6, 30, 5))
TENANT = Tenant(
    "container", CONTAINER.id, "train", "pytorch:2", Path("/none"),
    (TenantDevice(GPUS[0], Quota(), None), TenantDevice(GPUS[1], Quota(2 * GIB, 50), READING)),
    (("GPU-99999999-gone", Quota(GIB, None)),), CONTAINER, user="ann", created_s=CONTAINER.created_s,
)  # fmt: skip


def lines_of(capsys: pytest.CaptureFixture[str], output_format: str, **settings: bool) -> list[str]:
    ps_view.show([TENANT], output_format, **({"is_short": True, "with_state": False} | settings))
    return capsys.readouterr().out.splitlines()


def test_a_table_has_a_row_for_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    titles, first, second, gone = lines_of(capsys, "table")
    assert titles.split() == [
        "CONTAINER",
        "ID",
        "NAME",
        "IMAGE",
        "/",
        "COMMAND",
        "GPU",
        "MEMORY",
        "COMPUTE",
        "USER",
        "AGE",
    ]
    assert first.split()[:4] == ["0123456789ab", "train", "pytorch:2", "0"]
    assert first.split()[4:11] == ["?", "/", "no", "limit", "no", "limit", "ann"]
    assert second.split() == ["1", "500", "MiB", "/", "2", "GiB", "50", "/", "50", "%"]
    assert gone.split() == ["?", "?", "/", "1", "GiB", "no", "limit"]
    assert lines_of(capsys, "table", with_state=True)[1].endswith("Up 5 minutes")
    assert lines_of(capsys, "table", is_short=False)[1].startswith("0123456789abcdef ")


def test_a_name_is_one_that_every_verb_takes(capsys: pytest.CaptureFixture[str]) -> None:
    ps_view.show([replace(TENANT, within="slice job")], "table", is_short=True, with_state=False)
    assert " train " in (row := capsys.readouterr().out.splitlines()[1]) and "slice" not in row


def test_a_local_process_has_no_id_that_a_verb_could_take_for_a_container_s(capsys: pytest.CaptureFixture[str]) -> None:
    process = replace(TENANT, kind="process", id="123", name="process 123", what="python a.py", container=None)
    ps_view.show([replace(process, missing=())], "table", is_short=True, with_state=True)
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["process", "123", "python", "a.py"]
    for output_format in ("json", "csv", "{{.ID}};{{.Names}};{{.State}};{{.Command}}"):
        ps_view.show([process], output_format, is_short=False, with_state=True)
    described, _, *rows, templated = capsys.readouterr().out.splitlines()
    assert json.loads(described)["ID"] == "" and {row.split(",")[0] for row in rows} == {""}
    assert templated == ';process 123;running;"python a.py"'
    assert listing.parse_filters(["status=running", "user=ann"])[0](process)
    assert not listing.parse_filters(["id=123"])[0](process)


def test_what_the_driver_counts_is_shown_where_it_is_more() -> None:
    past = replace(TENANT.devices[1], programs_bytes=5 * GIB)
    assert listing.memory_used(past) == "5 GiB"
    assert listing.memory_used(replace(past, programs_bytes=MIB)) == "500 MiB"
    unread = TENANT.devices[0]
    assert (listing.memory_used(unread), listing.memory_used(replace(unread, programs_bytes=GIB))) == ("?", "1 GiB")


def test_json_and_csv_have_figures(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = lines_of(capsys, "json")
    described = json.loads(line)
    assert set(listing.FIELDS) < set(described)
    assert [device["memory_limit_bytes"] for device in described["Devices"]] == [None, 2 * GIB, GIB]
    assert described["Devices"][1]["sm_used_percent"] == 49.6
    rows = list(csv.DictReader(io.StringIO("\n".join(lines_of(capsys, "csv")))))
    assert [row["gpu_index"] for row in rows] == ["0", "1", ""]
    assert rows[1]["id"] == CONTAINER.id and rows[1]["created"] == "2023-11-14T22:13:20Z"
    assert rows[1]["memory_used_bytes"] == str(500 * MIB) and rows[2]["memory_used_bytes"] == ""


def test_templates_have_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(capsys, '{{.Names}} {{.GPUs}} {{.MemoryLimit}} {{.SM}} {{.Label "team"}}') == [
        "train 0,1,? no limit,2 GiB,1 GiB ?,50 %,? vision"
    ]
    assert lines_of(capsys, "{{.Command}}") == ['"python a-long-progr…"']
    assert lines_of(capsys, "{{.Command}}", is_short=False) == ['"python a-long-program.py"']


@pytest.mark.parametrize(
    ("filters", "is_shown"),
    [
        ((), True), (("name=trai",), True), (("name=^train$",), True), (("name=x",), False),
        (("name=x", "name=t"), True),
                (("id=0123",), True), (("id=123",), False), (("gpu=1",), True), (("gpu=7",), False),
        (("gpu=gpu-00000001",), True),
        (("gpu=GPU-99999999",), True), (("gpu=GPU-",), False), (("user=ann",), True), (("user=an",), False),
        (("label=team",), True), (("label=team=vision",), True), (("label=team=x",), False), (("label=empty=",), True),
        (("status=running",), True), (("status=exited",), False), (("name=trai", "user=bob"), False),
    ],
)  # fmt: skip
def test_filters(filters: tuple[str, ...], is_shown: bool) -> None:
    assert all(test(TENANT) for test in listing.parse_filters(filters)) == is_shown


@pytest.mark.parametrize("text", ["colour=red", "name", "", "=x"])
def test_wrong_filters(text: str) -> None:
    with pytest.raises(OptionError, match="name, id, gpu"):
        listing.parse_filters([text])
    with pytest.raises(OptionError, match="regular expression"):
        listing.parse_filters(["name=("])[0](TENANT)
    with pytest.raises(OptionError, match="'status=up': no such status; use one of created, rest"):
        listing.parse_filters(["status=running", "status=up"])


def test_paused_gpu_work_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    held = replace(TENANT, devices=(TenantDevice(GPUS[1], Quota(2 * GIB, 50, paused=True), READING),), missing=())
    ps_view.show([held], "table", is_short=True, with_state=True)
    _, row = capsys.readouterr().out.splitlines()
    assert row.split()[3:9] == ["1", "500", "MiB", "/", "2", "GiB"] and row.split()[9:11] == ["paused", "ann"]
    assert row.endswith("Up 5 minutes (GPU paused)")
    ps_view.show([held], "json", is_short=True, with_state=False)
    described = json.loads(capsys.readouterr().out)
    assert (described["State"], described["Status"]) == ("running", "Up 5 minutes (GPU paused)")
    assert described["Devices"][0]["paused"] is True
    assert "paused" not in "".join(lines_of(capsys, "table", with_state=True))


def test_a_paused_container_is_said_where_its_share_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    paused = replace(TENANT, container=replace(CONTAINER, status="paused"))
    ps_view.show([paused], "table", is_short=True, with_state=False)
    assert [line.split().count("paused") for line in capsys.readouterr().out.splitlines()] == [0, 1, 1, 1]
