"""How `vgpurun verify` compares the library's account of GPU time with the GPU's own records."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from vgpurun.diagnostics import gpu_time, verify
from vgpurun.diagnostics.gpu_time import Sample, Shares, Watch, shares_in
from vgpurun.errors import ChannelError
from vgpurun.host.gpu_records import lacking

MS = 1_000_000


def samples(*both_ms: tuple[int, int]) -> list[Sample]:
    """Make a sample each 100 ms: what the library has counted by then, and the GPU."""
    return [Sample(number / 10, *(each * MS for each in pair)) for number, pair in enumerate(both_ms)]


def test_time_in_which_a_context_does_nothing_is_left_out() -> None:
    """Alone it stays on its GPU, before its first work and after its last."""
    found = samples((5, 0), (8, 0), (8, 100), (30, 250), (80, 300), (130, 350), (180, 400), (190, 500), (190, 600))
    shares = shares_in(found)
    assert shares is not None
    assert tuple(round(each, 6) for each in shares) == (50.0, 50.0, 0.3)


@pytest.mark.parametrize("found", [(), ((0, 0), (0, 90)), ((0, 0), (50, 50)), ((0, 0), (50, 50), (99, 99), (99, 150))])
def test_too_little_work_says_nothing(found: tuple[tuple[int, int], ...]) -> None:
    assert shares_in(samples(*found)) is None


@pytest.mark.parametrize(
    ("library", "is_exact", "status"),
    [
        (50.0, True, "ok"),
        (53.0, True, "ok"),
        (47.0, True, "ok"),
        (60.0, True, "FAIL"),
        (40.0, True, "FAIL"),
        (60.0, False, "FAIL"),
        (40.0, False, "ok"),  # idle contexts may have been there
    ],
)
def test_judging_accounts(library: float, is_exact: bool, status: str) -> None:
    check = verify.judge_account("launches", Shares(library, 50.0, 2.0), is_exact, has_company=False)
    assert (check.name, check.status) == ("GPU time: launches", status)
    assert check.words == f"{library} % by the library, 50.0 by the GPU"


@pytest.mark.parametrize(
    ("shares", "is_exact", "words"),
    [
        (None, True, "it worked for too short a time"),
        ("refused", True, "refused"),
        (Shares(60.0, 30.0, 2.0), False, "launches are held"),  # pays for what others had
    ],
)
def test_what_was_not_compared(shares: Shares | str | None, is_exact: bool, words: str) -> None:
    check = verify.judge_account("graphs", shares, is_exact, has_company=True)
    assert (check.status, check.words) == ("skip", f"not compared: {words}")


def test_the_records_of_a_trials_own_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what they had before they were found, and until records are refused."""
    monkeypatch.setattr(gpu_time, "_INTERVAL_S", 0.005)
    reads = iter([[(1, 7 * MS), (2, 900 * MS)], [(3, 5 * MS)], [(1, 1 * MS)]])
    seen: list[int] = []

    class Times:
        def read(self, uuid: str) -> list[tuple[int, int]]:
            assert uuid == "GPU-1"
            try:
                return next(reads)
            except StopIteration:
                raise ChannelError("refused") from None

    def is_own(pid: int) -> bool | None:
        seen.append(pid)
        return pid != 2 if len(seen) > 2 else None

    times: Any = Times()
    with Watch(times, "GPU-1", is_own, lambda: 4 * len(seen) * MS) as watch:
        end_s = time.monotonic() + 20
        while not watch.trouble and time.monotonic() < end_s:
            time.sleep(0.005)
        found = list(watch.samples)
    assert watch.trouble == "refused"
    assert [each.gpu_ns // MS for each in found] == [0, 12, 13]
    assert seen == [1, 2, 1, 2, 3], "each is asked about until it is known"
    assert watch.shares() is None and watch.samples == []


def test_who_may_have_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        assert lacking(True) == lacking(False) == "it takes root"
        return
    assert lacking(True) == ""
    monkeypatch.setattr("vgpurun.host.gpu_records.pid_namespace", lambda: 0)
    assert (lacking(True), lacking(False)) == ("", "it takes the host's PIDs")
