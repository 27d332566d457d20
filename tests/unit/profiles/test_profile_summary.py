"""A run's summary: exact totals, what is over time, limits, waits, and what is missing."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

import support.made_profiles as made
from vgpurun.cli.views.report import print_summary
from vgpurun.profiles import words
from vgpurun.profiles.described import describe
from vgpurun.profiles.model import ApiTotal, Call, CopyKind, GateWait, GpuSpan, KernelTotal, Sample
from vgpurun.profiles.names import api_name, kernel_name, short_kernel_name
from vgpurun.profiles.series import Amounts, Axis, Counter, Levels
from vgpurun.profiles.summary import Summary, summarize
from vgpurun.profiles.units import show_count, show_rate, show_share, show_time

MS = 1_000_000


def text(summary: Summary) -> str:
    file = io.StringIO()
    print_summary(summary, file)
    return file.getvalue()


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_an_amount_is_spread_over_the_time_it_took() -> None:
    amounts = Amounts(Axis(1000, 1100, 10))
    amounts.add(1005, 20, 200)  # half a bin, a bin, half a bin
    amounts.add(1099, 50, 7)  # goes on after the end
    assert list(amounts.values) == [50, 100, 50, 0, 0, 0, 0, 0, 0, 7]
    amounts.add(1050, 0, 3)
    assert amounts.values[5] == 3 and amounts.total == 210


def test_a_level_stays_until_another_is_seen() -> None:
    levels = Levels(Axis(0, 100, 10))
    for at, value in ((21, 5), (25, 9), (29, 4), (61, 2)):
        levels.add(at, value)
    assert levels.highest() == [None, None, 9, 4, 4, 4, 2, 2, 2, 2]
    assert levels.last() == [None, None, 4, 4, 4, 4, 2, 2, 2, 2]


def test_the_rate_of_a_counter_is_that_between_two_looks() -> None:
    counter = Counter(Axis(0, 100, 10))
    for at, value in ((80, 30), (20, 0), (40, 10)):  # several processes' samples
        counter.add(at, value)
    assert counter.rates() == [None, None, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, None]
    assert counter.grown() == 30 and counter.mean_rate() == 0.5


def test_totals_are_exact_and_over_all_processes() -> None:
    one = made.MadeProfile(pid=1, last_ns=made.BEGIN_NS + 10, totals=[ApiTotal("cuInit", 1, 0, 0, 30, 30)])
    two = made.MadeProfile(
        pid=2,
        last_ns=made.BEGIN_NS + 10,
        totals=[ApiTotal("cuInit", 2, 1, 0, 40, 35), ApiTotal("cuMemAlloc_v2", 1, 0, 512, 90, 90)],
        kernels=[KernelTotal("a", 3, 10, 8, 4), KernelTotal("b", 1, 20)],
    )
    one.kernels = [KernelTotal("a", 1, 15, 12, 1)]
    summary = summarize([two, one])
    assert summary.apis == [ApiTotal("cuMemAlloc_v2", 1, 0, 512, 90, 90), ApiTotal("cuInit", 3, 1, 0, 70, 35)]
    assert summary.kernels == [KernelTotal("a", 4, 25, 20, 5), KernelTotal("b", 1, 20)]
    assert summary.launches == 5
    assert [process.pid for process in summary.processes] == [1, 2]


def test_a_training_used_what_it_was_given() -> None:
    profile = made.training(seconds=6, sm_percent=50)
    summary = summarize([profile])
    (device,) = summary.devices
    assert device.share == pytest.approx(0.49, abs=0.03)
    assert device.gpu_ns == sum(span.duration_ns for span in profile.span_list)
    assert (device.memory_limit_bytes, device.sm_limit_percent) == (4 << 30, 50)
    assert device.peak_bytes == max(sample.used_bytes for sample in profile.sample_list)
    measured = [share for share in device.shares if share is not None]
    assert len(measured) > 40 and all(0.4 < share < 0.6 for share in measured)
    assert summary.waits.count == len(profile.wait_list) == sum(summary.waits.by_length)
    assert summary.waits.total_ns == sum(wait.duration_ns for wait in profile.wait_list)
    assert [lane.title for lane in summary.lanes] == [
        "GPU 0, stream 1", "GPU 0, stream 2", "throttled", "copies to device", "copies to host",
        "copies on device", "API calls",
    ]  # fmt: skip
    busy = sum(lane.total_ns for lane in summary.lanes if lane.kind == "gpu")
    assert busy == device.gpu_ns


def test_without_samples_the_share_is_that_of_the_streams() -> None:
    profile = made.MadeProfile(ended_ns=made.BEGIN_NS + 1000 * MS, last_ns=made.BEGIN_NS + 1000 * MS)
    profile.span_list = [GpuSpan(0, 1, made.BEGIN_NS + 100 * MS, 250 * MS, 9, 250 * MS)]
    (device,) = summarize([profile]).devices
    assert device.share == 0.25
    assert list(device.shares) == pytest.approx([0, 1, 1, 0.5, 0, 0, 0, 0, 0, 0])


def test_streams_at_the_same_time_are_counted_once() -> None:
    """A stream waited for the other; and processes may work at the same time."""
    profile = made.MadeProfile(ended_ns=made.BEGIN_NS + 400 * MS, last_ns=made.BEGIN_NS + 400 * MS)
    profile.span_list = [
        GpuSpan(0, 1, made.BEGIN_NS, 200 * MS, 1, 200 * MS),
        GpuSpan(0, 2, made.BEGIN_NS, 300 * MS, 1, 100 * MS),
    ]
    summary = summarize([profile])
    assert summary.devices[0].gpu_ns == summary.processes[0].gpu_ns == 300 * MS
    assert summary.devices[0].share == 0.75
    assert list(summary.devices[0].shares) == pytest.approx([1, 1, 1, 0])
    (device,) = summarize([profile, profile]).devices
    assert (device.gpu_ns, device.share) == (400 * MS, 1)


@pytest.mark.parametrize(("sm_percent", "share"), [(100, 0.5), (60, 0.2)])
def test_the_container_counts_all_where_it_is_limited(sm_percent: int, share: float) -> None:
    """Without a limit it counts while it shares the GPU, and no longer."""
    profile = made.MadeProfile(ended_ns=made.BEGIN_NS + 400 * MS, last_ns=made.BEGIN_NS + 400 * MS)
    profile.span_list = [GpuSpan(0, 1, made.BEGIN_NS, 200 * MS, 1, 200 * MS)]
    looks = ((0, 0), (300, 0), (400, 80))
    profile.sample_list = [Sample(0, made.BEGIN_NS + at * MS, 0, 0, None, busy * MS, sm_percent) for at, busy in looks]
    (device,) = summarize([profile]).devices
    assert device.share == share


def test_records_whose_device_is_not_known_count_for_none() -> None:
    profile = made.MadeProfile(last_ns=made.BEGIN_NS + 100 * MS)
    profile.span_list = [GpuSpan(-1, 1, made.BEGIN_NS, 50 * MS, 1, 50 * MS)]
    profile.sample_list = [Sample(-1, made.BEGIN_NS, 5, 5, None, 5, 100)]
    profile.wait_list = [GateWait(-1, made.BEGIN_NS, 5, 1)]
    summary = summarize([profile])
    assert summary.devices[0].gpu_ns == 0 and summary.devices[0].peak_bytes == 0
    assert summary.waits.count == 1 and words.waits(summary).startswith("1 wait for the limit, ")


def test_bandwidth_is_that_of_calls_that_wait_for_their_copy() -> None:
    profile = made.MadeProfile(last_ns=made.BEGIN_NS + 1000 * MS)
    at, to_device, on_device = made.BEGIN_NS, CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_DEVICE
    profile.call("cuMemcpyHtoD_v2", at, 2 * MS, 4 << 20, kind=to_device)
    profile.call("cuMemcpyHtoDAsync_v2", at, 1, 1 << 30, kind=to_device)
    profile.call("cuMemcpyDtoD_v2", at, 1, 1 << 30, kind=on_device)
    first, second = summarize([profile]).copies
    assert (first.kind, first.calls, first.size_bytes) == (to_device, 2, (1 << 30) + (4 << 20))
    assert first.bandwidth == (4 << 20) / 0.002
    assert (second.kind, second.bandwidth) == (on_device, None)
    seconds = 1 / 120
    assert sum(first.bytes_per_s) * seconds == pytest.approx(first.size_bytes)


def test_memory_goes_with_its_process() -> None:
    summary = summarize(made.many(6))
    first, _ = summary.devices
    number, held = first.own_bytes[0]
    ended = summary.fine.index(summary.processes[number].ended_ns or 0)
    assert max(value or 0 for value in held) == summary.processes[number].peak_bytes
    assert all(not value for value in held[ended + 1 :])


def test_hundreds_of_streams_and_threads_share_lanes() -> None:
    profile = made.MadeProfile(last_ns=made.BEGIN_NS + 1000 * MS)
    for i in range(300):
        profile.span_list.append(GpuSpan(0, i, made.BEGIN_NS + i * MS, MS, 1, MS))
        profile.call("cuInit", made.BEGIN_NS + i * MS, MS, thread=i)
    summary = summarize([profile])
    assert [lane.title for lane in summary.lanes][3::4] == ["other streams", "other threads"]
    assert sum(lane.total_ns for lane in summary.lanes) == 600 * MS


def test_what_went_wrong_is_said() -> None:
    profile = made.killed()
    profile.totals.append(ApiTotal("cuMemAlloc_v3", 2, 2, 0, 5, 3))
    first, second, third = words.notices(summarize([profile]))
    how = "no end: killed, ended by _exit, or still running"
    assert first == f"Process 4242 has {how}. GPU work of its last moments may be missing."
    assert second.startswith("123,456 of the oldest records were dropped")
    assert third == "Calls that failed: cuMemAlloc twice."
    both = words.notices(summarize([made.killed(), made.killed()]))[0]
    assert both == f"2 processes (4242, 4242) have {how}. GPU work of their last moments may be missing."
    assert words.notices(summarize([made.empty()])) == ["No call of the CUDA driver was recorded."]
    assert words.notices(summarize([made.training(2)])) == []


def test_tables() -> None:
    found = rows(text(summarize([made.training(4), replace(made.empty(), started_ns=made.BEGIN_NS)])))
    assert ["GPU", "0", f"({made.UUIDS[0]})", "3.05", "GiB", "4", "GiB", "49", "%", "50", "%"] == found[4][:11]
    titles = [row[0] for row in found if row and row[0].isupper() and len(row) > 2 and row[1].isupper()]
    assert titles == ["GPU", "COMMAND", "FUNCTION", "KERNEL", "DIRECTION", "WAITS"]
    api = next(row for row in found if row[:1] == ["cuLibraryLoadData"])
    assert api[3] == "12"


def test_a_run_without_limits_has_none_in_its_table() -> None:
    profile = made.training(2, sm_percent=100)
    profile.sample_list = [sample._replace(memory_limit_bytes=None) for sample in profile.sample_list]
    output = text(summarize([profile]))
    assert output.count("no limit") == 2 and "WAITS" not in output


def test_the_failed_have_a_column() -> None:
    output = text(summarize([made.out_of_memory()]))
    assert "FAILED" in output
    assert "! Calls that failed: cuMemAlloc 3 times." in output


def test_what_is_known_of_how_full_the_gpu_was_has_a_column() -> None:
    profile = made.training(2)
    assert "GPU FILLED" not in text(summarize([profile]))
    profile.kernels = [KernelTotal("known", 1, 2 * 10**9, 2 * 10**9, 10**9), KernelTotal("unknown", 1, 10**9)]
    lines = text(summarize([profile])).splitlines()
    title = next(line for line in lines if line.startswith("KERNEL"))
    known, unknown = (next(line for line in lines if line.startswith(name)) for name in ("known", "unknown"))
    assert title.endswith("  GPU FILLED") and known.endswith("  50 %") and unknown.endswith("  1.00 s")


def test_no_name_steers_the_terminal() -> None:
    profile = made.training(2)
    profile.command = "python \x1b]0;owned\x07 train.py"
    profile.kernels.append(KernelTotal("\x1b[2Jkernel", 1, 10**12))
    output = text(summarize([profile]))
    assert "\x1b" not in output and "\x07" not in output and "[2Jkernel" in output


def test_described_is_json_with_units() -> None:
    described = json.loads(json.dumps(describe(summarize([made.training(3)]))))
    assert described["apis"][0]["api"] in ("cuLaunchKernel", "cuStreamSynchronize")
    device = described["devices"][0]
    assert device["memory_limit_bytes"] == 4 << 30 and device["sm_limit_percent"] == 50
    assert 40 < device["sm_used_percent"] < 60
    assert described["kernels"][1]["name"].startswith("void at::native::vectorized_elementwise_kernel<4,")


def test_names_as_people_know_them() -> None:
    assert [api_name(name) for name in ("cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds")] == [
        "cuMemAlloc", "cuLaunchKernel", "cuMemcpyHtoD",
    ]  # fmt: skip
    assert kernel_name("_Z4gemmPfi") == "gemm(float*, int)"
    assert kernel_name("_Z") == "_Z" and kernel_name("plain") == "plain"
    assert short_kernel_name("_Z4gemmPfi") == "gemm"
    assert (
        short_kernel_name(made.ELEMENTWISE, 60)
        == "at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<fl…"[:59] + "…"
    )
    assert len(short_kernel_name(made.GEMM, 40)) == 40


def test_a_command_is_one_line() -> None:
    assert (
        words.short_command("/usr/bin/python3 -c import torch\ntorch.zeros(1)\n")
        == "python3 -c import torch torch.zeros(1)"
    )
    assert words.short_command("./a", 10) == "a"
    assert words.short_command("python " + "x" * 100, 10) == "python xx…"


def test_figures_have_units() -> None:
    times = [show_time(ns) for ns in (0, 7, 999, 1000, 12_345, 999_600, 1_500_000, 99_960_000, 61 * 10**9, 5 * 10**12)]
    assert times == ["0 s", "7 ns", "999 ns", "1.00 µs", "12.3 µs", "1.00 ms", "1.50 ms", "100 ms", "61.0 s", "5,000 s"]
    assert [show_share(part) for part in (0, 0.0002, 0.005, 0.0996, 0.5, 1)] == [
        "0.0 %", "< 0.1 %", "0.5 %", "10 %", "50 %", "100 %",
    ]  # fmt: skip
    assert show_count(1234567) == "1,234,567" and show_rate(3 << 29) == "1.5 GiB/s"


def test_calls_of_no_length_and_bounds_do_no_harm() -> None:
    profile = made.MadeProfile(last_ns=made.BEGIN_NS)  # a run of no length
    profile.call_list = [
        Call("cuInit", made.BEGIN_NS, 0, 0, None, 1, -1, 0),
        Call("cuX", 2**62, 2**40, 0, None, 1, 0, 0),
    ]
    profile.sample_list = [Sample(0, 0, 1, 1, None, 0, 100)]
    summary = summarize([profile])
    assert summary.duration_ns == 1
    assert text(summary)
