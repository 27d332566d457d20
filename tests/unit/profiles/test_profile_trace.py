"""A run as a trace, and in Alnair's formats."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from typing import Any

import pytest

import support.made_profiles as made
from support.trace_rules import assert_nested
from vgpurun.profiles import alnair, trace
from vgpurun.profiles.model import Call, CopyKind, GpuSpan, Sample

MS = 1_000_000


def events_of(*profiles: made.MadeProfile) -> list[dict[str, Any]]:
    file = io.StringIO()
    written = trace.write(profiles, file)
    parsed = json.loads(file.getvalue())
    events: list[dict[str, Any]] = parsed["traceEvents"]
    assert parsed["displayTimeUnit"] == "ns" and len(events) == written
    return events


def named(events: list[dict[str, Any]], kind: str) -> list[str]:
    return [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == kind]


def test_a_training_has_all_of_its_tracks() -> None:
    profile = made.training(2)
    events = events_of(profile)
    assert_nested(events)
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert all({"name", "ph", "pid", "tid"} <= event.keys() for event in events)
    assert named(events, "process_name") == ["python train.py [4242]", f"GPU 0 ({made.UUIDS[0]})"]
    assert named(events, "thread_name") == [
        "API calls, thread 4242", "copies host to device", "copies device to host", "copies device to device",
        "GPU 0, stream 1 (0x8)", "GPU 0, stream 2 (0x7)", "throttled, thread 4242",
    ]  # fmt: skip
    by_category = defaultdict(list)
    for event in events:
        by_category[event.get("cat", event["ph"])].append(event)
    assert len(by_category["api"]) == len(profile.call_list)
    assert len(by_category["gpu"]) == len(profile.span_list)
    assert len(by_category["gate"]) == len(profile.wait_list)
    assert {event["name"] for event in by_category["C"]} == {"memory", "memory on GPU 0", "GPU share"}


def test_what_an_event_says() -> None:
    profile = made.MadeProfile(last_ns=made.BEGIN_NS + MS)
    profile.call("cuMemcpyHtoD_v2", made.BEGIN_NS + 1500, 2000, 4096, kind=CopyKind.HOST_TO_DEVICE, thread=9, stream=3)
    profile.sample_list = [Sample(0, made.BEGIN_NS + at * 60 * MS, 500, 400, 1000, at * 30 * MS, 40) for at in (0, 1)]
    events = [event for event in events_of(profile) if event["ph"] != "M"]
    assert events[0] == {
        "ph": "X", "name": "cuMemcpyHtoD", "cat": "api", "pid": 4242, "tid": 9, "ts": 1.5, "dur": 2.0,
        "args": {"bytes": 4096, "stream": "0x3"},
    }  # fmt: skip
    assert events[1]["args"] == {"bytes": 4096, "kind": 1, "api": "cuMemcpyHtoD", "bytes_per_s": 2_048_000_000}
    assert events[2]["args"] == {"used_bytes": 500, "limit_bytes": 1000}
    assert events[3]["args"] == {"own_bytes": 400}
    assert events[-1]["name"] == "GPU share" and events[-1]["args"] == {"percent": 50.0, "limit_percent": 40}


def test_processes_with_the_same_number_are_apart() -> None:
    first, second = made.training(2), made.training(2, begin_ns=made.BEGIN_NS + 50 * MS, gpu=1)
    events = events_of(first, second)
    assert_nested(events)
    pids = {event["pid"] for event in events if event.get("cat") == "api"}
    assert len(pids) == 2 and 4242 in pids
    assert "GPU 1, stream 2 (0x7)" in named(events, "thread_name")


def test_overlaps_that_clocks_make_are_cut() -> None:
    profile = made.MadeProfile(last_ns=made.BEGIN_NS + MS)
    for start, duration in ((0, 100), (90, 100), (150, 20), (185, 100), (180, 120)):
        profile.span_list.append(GpuSpan(0, 1, made.BEGIN_NS + start, duration, 1, duration))
    for start, duration in ((0, 100), (10, 20), (20, 30), (50, 60)):  # a call within a call
        profile.call_list.append(Call("cuInit", made.BEGIN_NS + start, duration, 0, None, 1, 0, 0))
    events = events_of(profile)
    assert_nested(events)
    assert sum(event["ph"] == "X" for event in events) == 9


def test_a_process_that_did_nothing() -> None:
    assert [event["ph"] for event in events_of(made.empty())] == ["M", "M", "M"]


def test_alnair_metrics() -> None:
    file = io.StringIO()
    profile = made.out_of_memory()
    profile.call("cuMemcpyHtoD_v2", made.BEGIN_NS, 5000, 10, kind=CopyKind.HOST_TO_DEVICE)
    profile.call("cuEventRecord", made.BEGIN_NS, 7999)
    alnair.write_metrics([profile.total_up()], file)
    assert file.getvalue().splitlines() == [
        f"name:mem_used,count:{profile.sample_list[-1].own_bytes}",
        "name:cuInit,count:1,burst:150000",
        "name:cuMemAlloc,count:15,burst:3870",
        "name:cuMemFree,count:0,burst:0",
        "name:cuLaunchKernel,count:0,burst:0",
        "name:cuMemcpyH2D,count:1,burst:5",
        "name:cuMemcpyD2H,count:0,burst:0",
        "name:cuGetProcAddress,count:0,burst:0",
        "name:cuMemcpyH2D_ASYNC,count:0,burst:0",
        "name:cuEventRecord,count:1,burst:7",
    ]


def as_alnair_reads_them(line: str) -> dict[str, str]:
    return dict(part.strip().split(":") for part in line.split(","))


def test_alnair_timeline_is_in_order_over_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = [made.training(2), made.training(2, begin_ns=made.BEGIN_NS + 31 * MS, pid=5, seed=2)]
    whole = io.StringIO()
    written = alnair.write_timeline(profiles, whole)
    lines = whole.getvalue().splitlines()
    assert len(lines) == written == sum(len(profile.call_list) for profile in profiles)
    assert lines[0] == f"name:cuInit, start:{made.BEGIN_NS + 300 * MS}, burst:180000, bytes:0, kind:-1"
    fields = [as_alnair_reads_them(line) for line in lines]
    starts = [int(each["start"]) for each in fields]
    assert starts == sorted(starts)
    copies = [each for each in fields if each["kind"] == "1"]
    assert copies and {each["name"] for each in copies} == {"cuMemcpyH2D_ASYNC"}
    assert {each["bytes"] for each in copies} == {str(19 << 20)}

    monkeypatch.setattr(alnair, "_SORTED_AT_ONCE", 100)  # in many parts
    parts = io.StringIO()
    alnair.write_timeline(profiles, parts)
    assert parts.getvalue() == whole.getvalue()
