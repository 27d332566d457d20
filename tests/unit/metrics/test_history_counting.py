"""The history: what is counted between two snapshots, also by an exporter that stops, waits or is killed."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import GIB
from histories import ANN, BEN, DAY_S, GPU, NOW_S, device, read

from vgpurun import abi
from vgpurun.host.gpus import GpuUse
from vgpurun.metrics import snapshot
from vgpurun.metrics import store as store_module
from vgpurun.metrics.accounting import reading, timeline
from vgpurun.metrics.holding import Held, Holding
from vgpurun.metrics.recorder import Clock, Recorder, count
from vgpurun.metrics.snapshot import HISTORY, Device, GpuSeen, Snapshot
from vgpurun.metrics.store import HOUR_S, Mark, Store, Use


@pytest.fixture(autouse=True)
def _a_host_that_has_been_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is taken to have used a GPU for longer."""
    monkeypatch.setattr(
        snapshot, "time", SimpleNamespace(**{**vars(time), "monotonic_ns": lambda: 400 * DAY_S * 10**9})
    )


class Host:
    """Return what an exporter would see now."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.troubles: list[str] = []

    def look(self) -> Snapshot:
        return Snapshot([], [each.tenant for each in self.devices], {}, {}, 0, 0)

    def note(self, source: str, trouble: str) -> None:
        assert source == HISTORY
        if trouble:
            self.troubles.append(trouble)


@pytest.fixture
def host() -> Host:
    return Host()


def recorder(host: Host, open_store: Callable[..., Store], said: list[str] | None = None) -> Recorder:
    return Recorder(host, (said if said is not None else []).append, open_store, 10)  # type: ignore[arg-type]


class TestCounting:
    def test_what_was_used_since_the_last_time(self) -> None:
        (found,) = count(device(busy_s=13), None, Mark(9.0, NOW_S), NOW_S + 10, 10)
        assert found == Use(int(NOW_S), 10, 10, 10, 0, 4.0, 0.4, 10 * GIB, GIB, 0, 0)

    def test_no_more_than_there_was_time(self) -> None:
        assert sum(each.gpu_s for each in count(device(busy_s=1e9), None, Mark(0.0, NOW_S), NOW_S + 10, 10)) == 10

    def test_a_counter_that_began_anew(self) -> None:
        assert sum(each.gpu_s for each in count(device(busy_s=3), None, Mark(500.0, NOW_S), NOW_S + 10, 10)) == 3

    def test_a_clock_that_was_set_back(self) -> None:
        assert list(count(device(busy_s=3), None, Mark(0.0, NOW_S), NOW_S - 100, 10)) == []

    def test_without_a_limit_it_is_measured_in_company(self) -> None:
        free, other = device(busy_s=3, sm_percent=None), device(who=BEN)
        seen = GpuSeen(GPU, GpuUse(0, 80), [free, other])
        (found,) = count(free, seen, Mark(1.0, NOW_S), NOW_S + 10, 10)
        assert (found.measured_s, found.estimated_s, found.gpu_s) == (10, 0, 2)
        (idle,) = count(free, seen, Mark(3.0, NOW_S), NOW_S + 10, 10)
        assert (idle.measured_s, idle.estimated_s, idle.gpu_s) == (10, 0, 0)

    @pytest.mark.parametrize(("percent", "expected"), [(80, (0, 10, 8.0)), (None, (0, 0, 0.0))])
    def test_without_a_limit_and_alone_it_is_what_nvml_says(
        self, percent: int | None, expected: tuple[float, ...]
    ) -> None:
        free, idle = device(sm_percent=None), device(who=BEN, processes=0)
        seen = GpuSeen(GPU, GpuUse(0, percent), [free, idle])
        (found,) = count(free, seen, Mark(0.0, NOW_S), NOW_S + 10, 10)
        assert (found.measured_s, found.estimated_s, found.gpu_s) == expected
        paused = list(count(free, seen, Mark(0.0, NOW_S - 7200), NOW_S, 10))
        assert sum(each.estimated_s + each.measured_s + each.gpu_s for each in paused) == 0, "nobody looked"

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (device(busy_s=9), (10, 0)),
            (device(busy_s=9.001), (0, 0)),
            (device(busy_s=9, used_bytes=0), (0, 0)),
            (device(busy_s=9, suspended=abi.SUSPENDED), (0, 10)),
            (device(busy_s=9, suspended=abi.SUSPENDED, used_bytes=0), (0, 0)),
        ],
        ids=["idle", "busy", "holds nothing", "suspended", "had nothing to give"],
    )
    def test_what_is_held_idle_and_given_back(self, found: Device, expected: tuple[float, float]) -> None:
        uses = list(count(found, None, Mark(9.0, NOW_S + 4), NOW_S + 14, 10))
        assert (sum(each.idle_s for each in uses), sum(each.given_back_s for each in uses)) == expected
        paused = list(count(found, None, Mark(9.0, NOW_S), NOW_S + 100, 10))
        assert sum(each.idle_s + each.given_back_s for each in paused) == 0, "nobody looked"

    @pytest.mark.parametrize(("percent", "idle_s"), [(0, 10), (3, 0), (None, 0)])
    def test_one_that_is_not_measured_is_idle_if_nvml_says_so(self, percent: int | None, idle_s: float) -> None:
        free = device(sm_percent=None)
        (found,) = count(free, GpuSeen(GPU, GpuUse(0, percent), [free]), Mark(0.0, NOW_S), NOW_S + 10, 10)
        assert found.idle_s == idle_s

    def test_those_that_take_turns_have_their_own_time_each(self) -> None:
        """NVML sees what the other did in its turn before. One that waits holds nothing, and has given nothing back."""
        there = device(busy_s=12, sm_percent=None, takes_turns=True)
        away = device(busy_s=15, sm_percent=None, who=BEN, suspended=abi.SWAPPED, takes_turns=True)
        seen = GpuSeen(GPU, GpuUse(0, 90), [there, away])
        uses = [count(each, seen, Mark(10.0, NOW_S), NOW_S + 10, 10) for each in (there, away)]
        found = [(each.gpu_s, each.measured_s, each.idle_s, each.given_back_s) for use in uses for each in use]
        assert found == [(2, 10, 0, 0), (5, 10, 0, 0)]
        (idle,) = count(there, seen, Mark(12.0, NOW_S), NOW_S + 10, 10)
        assert (idle.gpu_s, idle.idle_s) == (0, 10)

    def test_nvml_sees_one_that_is_there_and_none_that_is_suspended(self) -> None:
        there, away = device(sm_percent=None), device(sm_percent=None, who=BEN, suspended=abi.SUSPENDED)
        seen = GpuSeen(GPU, GpuUse(0, 80), [there, away])
        (found,) = count(there, seen, Mark(0.0, NOW_S), NOW_S + 10, 10)
        assert (found.gpu_s, found.estimated_s, found.idle_s) == (8, 10, 0)
        (found,) = count(away, seen, Mark(0.0, NOW_S), NOW_S + 10, 10)
        assert (found.gpu_s, found.estimated_s, found.given_back_s) == (0, 0, 10)

    def test_a_slice_counts_while_something_runs_in_it(self) -> None:
        of_slice = replace(ANN, kind="slice")
        assert list(count(device(5, who=of_slice, processes=0), None, Mark(5.0, NOW_S), NOW_S + 10, 10)) == []
        assert list(count(device(5, who=of_slice), None, Mark(5.0, NOW_S), NOW_S + 10, 10))
        assert list(count(device(6, who=of_slice, processes=0), None, Mark(5.0, NOW_S), NOW_S + 10, 10))

    def test_spans_are_not_crossed(self) -> None:
        found = list(count(device(busy_s=10), None, Mark(0.0, NOW_S + 4), NOW_S + 14, 10))
        assert [(each.start_s - NOW_S, each.ran_s, each.gpu_s) for each in found] == [(0, 6, 6), (10, 4, 4)]

    def test_after_a_pause_its_gpu_time_is_in_the_pause_and_nothing_else_is_known(self) -> None:
        found = list(count(device(busy_s=80), None, Mark(60.0, NOW_S - 42), NOW_S - 2, 10))
        assert [(each.start_s - NOW_S, each.gpu_s) for each in found] == [
            (-50, 1), (-40, 5), (-30, 5), (-20, 5), (-10, 4)
        ]  # fmt: skip
        assert sum(each.gpu_s for each in found) == pytest.approx(20)
        assert {(each.ran_s, each.memory_byte_s, each.memory_peak_bytes) for each in found} == {(0, 0, 0)}
        assert sum(each.measured_s for each in found) == 40

    def test_a_long_pause_is_as_coarse_as_what_is_kept_of_it(self) -> None:
        found = list(count(device(busy_s=5000), None, Mark(1400.0, NOW_S - 20 * DAY_S), NOW_S, 10))
        assert {each.span_s for each in found} == {10, 300, HOUR_S} and len(found) < 7000
        assert sum(each.gpu_s for each in found) == pytest.approx(3600)
        assert all(each.start_s % each.span_s == 0 for each in found)


def test_an_exporter_adds_up_what_it_sees() -> None:
    """The exporter does not know what was before it came, and begins anew with a container that comes again."""
    holding, key = Holding(), device().key

    def look(now_s: float, *devices: Device) -> Held | None:
        return holding.look([GpuSeen(GPU, GpuUse(0, 0), devices)], now_s).get(key)

    assert look(100, device(busy_s=9)) == Held()
    assert look(110, device(busy_s=9)) == Held(10, 0)
    assert look(120, device(busy_s=11)) == Held(10, 0)
    assert look(125, device(busy_s=11, suspended=abi.SUSPENDED)) == Held(10, 5)
    assert look(128, device(busy_s=11)) == Held(13, 5)
    assert look(130) is None
    assert look(140, device(busy_s=11)) == Held()


class TestRecorder:
    def test_containers_come_and_go(self, host: Host, open_store: Callable[..., Store], history: Path) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=1000)]
        record.sample(NOW_S)  # ran before: nobody knows since when
        host.devices = [device(busy_s=1005), device(busy_s=2, who=BEN)]
        record.sample(NOW_S + 10)
        host.devices = [device(busy_s=1010)]
        record.sample(NOW_S + 20)
        host.devices = [device(busy_s=1010)]
        record.sample(NOW_S + 30)
        host.devices = [device(busy_s=1010, suspended=abi.SUSPENDED)]
        record.sample(NOW_S + 40)
        held = {each.user: (each.idle_seconds, each.given_back_seconds) for each in read(history)}
        assert held == {"ann": (10, 10), "ben": (0, 0)}
        assert {each.user: (each.gpu_seconds, each.ran_seconds) for each in read(history)} == {
            "ann": (10, 40),
            "ben": (2, 10),
        }
        assert host.troubles == []

    @pytest.mark.parametrize("set_by_s", [-5000.0, 7200.0, 10 * 365 * 86400.0])
    def test_a_clock_that_is_set_adds_nothing(
        self, host: Host, open_store: Callable[..., Store], history: Path, set_by_s: float
    ) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=1000)]
        record.sample(NOW_S)
        host.devices = [device(busy_s=1005)]
        record.sample(NOW_S + set_by_s + 10, set_by_s)
        host.devices = [device(busy_s=1010), device(busy_s=2, who=BEN)]
        record.sample(NOW_S + set_by_s + 20)
        found = {each.user: (each.gpu_seconds, each.ran_seconds, each.memory_byte_hours) for each in read(history)}
        host.devices = []
        record.sample(NOW_S + set_by_s + 1000)  # nothing was forgotten
        assert len(read(history)) == 2
        assert found == {"ann": (10, 20, pytest.approx(GIB * 20 / 3600)), "ben": (2, 10, pytest.approx(GIB / 360))}

    def test_a_clock_knows_by_how_much_it_was_set(self) -> None:
        shown = iter([(100.0, 5.0), (110.0, 15.1), (3720.0, 25.0), (20.0, 35.0), (30.0, 45.0)])
        current = [0.0, 0.0]

        def look() -> None:
            current[:] = next(shown)

        look()
        clock = Clock(lambda: current[0], lambda: current[1])
        found = []
        for _ in range(4):
            look()
            found.append(clock.now())
        assert [now_s for now_s, _ in found] == [110.0, 3720.0, 20.0, 30.0]
        assert [round(set_by_s) for _, set_by_s in found] == [0, 3600, -3710, 0]

    def test_an_exporter_that_was_killed_goes_on_where_it_was(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        store = open_store()
        first = recorder(host, lambda: store)
        host.devices = [device(busy_s=100)]
        first.sample(NOW_S)
        host.devices = [device(busy_s=105)]
        first.sample(NOW_S + 10)
        store.close()  # closing writes nothing
        second = recorder(host, open_store)
        host.devices = [device(busy_s=1105)]
        second.sample(NOW_S + 3000)
        (account,) = read(history)
        assert account.gpu_seconds == pytest.approx(1005)
        assert (account.ran_seconds, account.measured_seconds) == (10, pytest.approx(3000))
        assert account.mean_share_ratio == pytest.approx(1005 / 3000)

    def test_what_came_and_went_while_the_exporter_was_away(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        store = open_store()
        first = recorder(host, lambda: store)
        host.devices = [device(busy_s=100), device(busy_s=50, who=BEN)]
        for step in range(5):
            host.devices = [device(busy_s=100 + 5 * step), device(busy_s=50, who=BEN)]
            first.sample(NOW_S + 10 * step)
        store.close()
        second = recorder(host, open_store)
        for step in range(12, 25):  # for 80 s nobody looked, and ben's has ended in them
            host.devices = [device(busy_s=100 + 5 * step)] if step < 18 else []
            second.sample(NOW_S + 10 * step)
        minutes = [read(history, since_s=NOW_S + 60 * n, until_s=NOW_S + 60 * (n + 1)) for n in range(4)]
        shown = [{each.user: (round(each.gpu_seconds), round(each.ran_seconds)) for each in found} for found in minutes]
        assert shown == [{"ann": (30, 40), "ben": (0, 40)}, {"ann": (30, 0)}, {"ann": (25, 50)}, {}]
        with reading(history) as db:
            found = timeline(db, "user", NOW_S, NOW_S + 240)
        (ann, ben) = found.curves
        assert found.edges_s[-1] == NOW_S + 240
        assert [*ann.shares] == [pytest.approx(0.5)] * 17 + [0.0] * 7 and not any(ben.shares)
        assert [*ann.memory_bytes] == [GIB] * 4 + [0.0] * 8 + [GIB] * 5 + [0.0] * 7
        assert [*found.is_sampled] == [True] * 4 + [False] * 8 + [True] * 12

    def test_one_that_was_away_itself_was_not_there_meanwhile(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        record = recorder(host, open_store)
        for step in range(40):
            host.devices = [] if 5 <= step < 30 else [device(busy_s=step % 25)]
            record.sample(NOW_S + 10 * step)
        assert read(history, since_s=NOW_S + 60, until_s=NOW_S + 280) == []
        (account,) = read(history)
        assert account.measured_seconds == account.ran_seconds == 140

    def test_gpu_time_is_not_lost_where_one_could_not_be_seen(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        record = recorder(host, open_store)
        for step in range(40):
            host.devices = [] if 5 <= step < 30 else [device(busy_s=10 * step)]
            record.sample(NOW_S + 10 * step)
        (account,) = read(history)
        assert (account.gpu_seconds, account.mean_share_ratio) == (pytest.approx(390), pytest.approx(1))

    def test_a_second_exporter_says_so_and_takes_over(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        host.devices = [device(busy_s=100)]
        store = open_store()
        first, second = recorder(host, lambda: store), recorder(host, open_store)
        first.sample(NOW_S)
        second.sample(NOW_S + 1)
        assert len(host.troubles) == 1 and "another exporter" in host.troubles[0]
        store.close()
        host.devices = [device(busy_s=104)]
        second.sample(NOW_S + 10)
        assert read(history)[0].gpu_seconds == pytest.approx(4)

    def test_what_cannot_be_written_is_counted_later(
        self, host: Host, open_store: Callable[..., Store], history: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module, "_BUSY_S", 0.01)
        record = recorder(host, open_store)
        host.devices = [device(busy_s=0)]
        record.sample(NOW_S)
        other = sqlite3.connect(history, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        host.devices = [device(busy_s=5)]
        record.sample(NOW_S + 10)
        assert len(host.troubles) == 1 and "locked" in host.troubles[0]
        other.execute("ROLLBACK")
        other.close()
        host.devices = [device(busy_s=8)]
        record.sample(NOW_S + 20)
        (account,) = read(history)
        assert (account.gpu_seconds, account.ran_seconds) == (8, 20)

    def test_a_file_that_somebody_removed_begins_anew(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=0)]
        record.sample(NOW_S)
        history.unlink()
        host.devices = [device(busy_s=5)]
        record.sample(NOW_S + 10)
        assert read(history)[0].gpu_seconds == 5

    def test_a_file_that_breaks_is_moved_aside(
        self, host: Host, open_store: Callable[..., Store], history: Path
    ) -> None:
        said: list[str] = []
        record = recorder(host, open_store, said)
        host.devices = [device(busy_s=0)]
        record.sample(NOW_S)
        content = bytearray(history.read_bytes())
        content[24:28] = content[92:96] = b"\0\0\1\0"  # SQLite sees that another process has written
        content[100:] = random.Random(1).randbytes(len(content) - 100)
        history.write_bytes(content)
        for step in (10, 20):
            host.devices = [device(busy_s=step / 2)]
            record.sample(NOW_S + step)
        assert read(history)[0].gpu_seconds == 10, host.troubles
        assert len(said) == 1 and ".broken-" in said[0]
        assert len(list(history.parent.glob("*.broken-*"))) == 1
