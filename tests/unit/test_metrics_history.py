"""The history: what is counted, what is kept of it, and what happens to its file."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from vgpurun.errors import HistoryError
from vgpurun.host.gpus import GpuUse
from vgpurun.limits.quota import Quota
from vgpurun.limits.region import DeviceReading
from vgpurun.metrics import accounting
from vgpurun.metrics.accounting import Account, accounts, reading, timeline
from vgpurun.metrics.recorder import Clock, Recorder, count
from vgpurun.metrics.snapshot import HISTORY, Device, GpuSeen, Snapshot, TenantSeen
from vgpurun.metrics.store import HOUR_S, HistoryInUseError, Mark, Store, Use, Who

NOW_S = 1_900_000_800.0  # a whole hour
DAY_S = 24 * HOUR_S
GPU = make_gpus(1)[0]
ANN = Who("1", "train", "ann", "container", GPU.uuid, "0", "Test GPU")
BEN = replace(ANN, container="2", name="infer", user="ben")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab" / "history.sqlite"


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def open_it(keep_s: int = 400 * DAY_S, max_bytes: int = 1 << 28) -> Store:
        opened.append(Store(path, keep_s, max_bytes))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


def device(
    busy_s: float = 0.0, used_bytes: int = GIB, who: Who = ANN, sm_percent: int | None = 50, processes: int = 1
) -> Device:
    tenant = TenantSeen(who.kind, who.container, who.name, who.user, "image")
    read = DeviceReading(GPU.uuid, allocated_bytes=used_bytes, busy_ns=int(busy_s * 1e9), processes=processes)
    tenant.devices.append(Device(tenant, GPU, 0, Quota(2 * GIB, sm_percent), read))
    return tenant.devices[0]


def use(start_s: float = NOW_S, span_s: int = 10, gpu_s: float = 5.0, memory_bytes: int = GIB) -> Use:
    return Use(int(start_s), span_s, span_s, span_s, 0, gpu_s, gpu_s / span_s, memory_bytes * span_s, memory_bytes)


def read(path: Path, by: str = "user", since_s: float = 0, until_s: float = 2e10) -> list[Account]:
    with reading(path) as db:
        return accounts(db, by, since_s, until_s)


class Host:
    """What an exporter would see now."""

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
        assert found == Use(int(NOW_S), 10, 10, 10, 0, 4.0, 0.4, 10 * GIB, GIB)

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

    def test_a_slice_counts_while_something_runs_in_it(self) -> None:
        of_slice = replace(ANN, kind="slice")
        assert list(count(device(5, who=of_slice, processes=0), None, Mark(5.0, NOW_S), NOW_S + 10, 10)) == []
        assert list(count(device(5, who=of_slice), None, Mark(5.0, NOW_S), NOW_S + 10, 10))
        assert list(count(device(6, who=of_slice, processes=0), None, Mark(5.0, NOW_S), NOW_S + 10, 10))

    def test_spans_are_not_crossed(self) -> None:
        found = list(count(device(busy_s=10), None, Mark(0.0, NOW_S + 4), NOW_S + 14, 10))
        assert [(each.start_s - NOW_S, each.ran_s, each.gpu_s) for each in found] == [(0, 6, 6), (10, 4, 4)]

    def test_after_a_pause_it_is_spread_over_hours(self) -> None:
        found = list(count(device(busy_s=5000), None, Mark(1400.0, NOW_S - 7200), NOW_S, 10))
        assert [each.span_s for each in found] == [HOUR_S, HOUR_S]
        assert sum(each.gpu_s for each in found) == pytest.approx(3600)


class TestRecorder:
    def test_containers_come_and_go(self, host: Host, open_store: Callable[..., Store], path: Path) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=1000)]
        record.sample(NOW_S)  # it ran before: nobody knows since when
        host.devices = [device(busy_s=1005), device(busy_s=2, who=BEN)]
        record.sample(NOW_S + 10)
        host.devices = [device(busy_s=1010)]
        record.sample(NOW_S + 20)
        assert {each.user: (each.gpu_seconds, each.ran_seconds) for each in read(path)} == {
            "ann": (10, 20),
            "ben": (2, 10),
        }
        assert host.troubles == []

    @pytest.mark.parametrize("set_by_s", [-5000.0, 7200.0, 10 * 365 * 86400.0])
    def test_a_clock_that_is_set_adds_nothing(
        self, host: Host, open_store: Callable[..., Store], path: Path, set_by_s: float
    ) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=1000)]
        record.sample(NOW_S)
        host.devices = [device(busy_s=1005)]
        record.sample(NOW_S + set_by_s + 10, set_by_s)
        host.devices = [device(busy_s=1010), device(busy_s=2, who=BEN)]
        record.sample(NOW_S + set_by_s + 20)
        found = {each.user: (each.gpu_seconds, each.ran_seconds, each.memory_byte_hours) for each in read(path)}
        host.devices = []
        record.sample(NOW_S + set_by_s + 1000)  # nothing was forgotten
        assert len(read(path)) == 2
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
        self, host: Host, open_store: Callable[..., Store], path: Path
    ) -> None:
        first = recorder(host, open_store)
        host.devices = [device(busy_s=100)]
        first.sample(NOW_S)
        host.devices = [device(busy_s=105)]
        first.sample(NOW_S + 10)
        assert first._store is not None
        first._store.close()  # of which it writes nothing
        second = recorder(host, open_store)
        host.devices = [device(busy_s=1105)]
        second.sample(NOW_S + 3000)
        (account,) = read(path)
        assert account.gpu_seconds == pytest.approx(1005)
        assert account.ran_seconds == pytest.approx(3000)

    def test_a_second_exporter_says_so_and_takes_over(
        self, host: Host, open_store: Callable[..., Store], path: Path
    ) -> None:
        host.devices = [device(busy_s=100)]
        first, second = recorder(host, open_store), recorder(host, open_store)
        first.sample(NOW_S)
        second.sample(NOW_S + 1)
        assert len(host.troubles) == 1 and "another exporter" in host.troubles[0]
        assert first._store is not None
        first._store.close()
        host.devices = [device(busy_s=104)]
        second.sample(NOW_S + 10)
        assert read(path)[0].gpu_seconds == pytest.approx(4)

    def test_what_cannot_be_written_is_counted_later(
        self, host: Host, open_store: Callable[..., Store], path: Path
    ) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=0)]
        record.sample(NOW_S)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        assert record._store is not None
        record._store._db.execute("PRAGMA busy_timeout = 10")
        host.devices = [device(busy_s=5)]
        record.sample(NOW_S + 10)
        assert len(host.troubles) == 1 and "locked" in host.troubles[0]
        other.execute("ROLLBACK")
        other.close()
        host.devices = [device(busy_s=8)]
        record.sample(NOW_S + 20)
        (account,) = read(path)
        assert (account.gpu_seconds, account.ran_seconds) == (8, 20)

    def test_a_file_that_somebody_removed_begins_anew(
        self, host: Host, open_store: Callable[..., Store], path: Path
    ) -> None:
        record = recorder(host, open_store)
        host.devices = [device(busy_s=0)]
        record.sample(NOW_S)
        path.unlink()
        host.devices = [device(busy_s=5)]
        record.sample(NOW_S + 10)
        assert read(path)[0].gpu_seconds == 5

    def test_a_file_that_breaks_is_moved_aside(self, host: Host, open_store: Callable[..., Store], path: Path) -> None:
        said: list[str] = []
        record = recorder(host, open_store, said)
        host.devices = [device(busy_s=0)]
        record.sample(NOW_S)
        content = bytearray(path.read_bytes())
        content[24:28] = content[92:96] = b"\0\0\1\0"  # SQLite sees that another process has written
        content[100:] = random.Random(1).randbytes(len(content) - 100)
        path.write_bytes(content)
        for step in (10, 20):
            host.devices = [device(busy_s=step / 2)]
            record.sample(NOW_S + step)
        assert read(path)[0].gpu_seconds == 10, host.troubles
        assert len(said) == 1 and ".broken-" in said[0]
        assert len(list(path.parent.glob("*.broken-*"))) == 1


class TestFile:
    def test_coarser_spans_have_the_same_sums(self, open_store: Callable[..., Store], path: Path) -> None:
        store = open_store()
        begin_s = NOW_S - 30 * DAY_S
        generator = random.Random(2)
        uses = [
            (generator.choice((ANN, BEN)), use(begin_s + 10 * number, gpu_s=generator.random() * 10))
            for number in range(5000)
        ]
        store.add(uses, {ANN: Mark(0, NOW_S), BEN: Mark(0, NOW_S)})
        before = read(path)
        lengths = []
        for age_s in (0, 7 * HOUR_S, 15 * DAY_S, 16 * DAY_S):
            store.thin(begin_s + 50_000 + age_s)
            with reading(path) as db:
                lengths.append(db.execute("SELECT count(*), max(span_s) FROM use").fetchone())
        assert [longest for _, longest in lengths] == [300, 300, 3600, 3600]
        assert lengths[0][0] > lengths[1][0] > lengths[2][0] == lengths[3][0] <= 2 * 15
        after = read(path)
        for old, new in zip(before, after, strict=True):
            assert new.gpu_seconds == pytest.approx(old.gpu_seconds)
            assert new.ran_seconds == pytest.approx(old.ran_seconds)
            assert new.memory_byte_hours == pytest.approx(old.memory_byte_hours)
            assert (new.max_share_ratio, new.memory_peak_bytes) == (old.max_share_ratio, old.memory_peak_bytes)

    def test_what_is_too_old_is_forgotten_with_its_names(self, open_store: Callable[..., Store], path: Path) -> None:
        store = open_store(keep_s=DAY_S)
        store.add([(ANN, use(NOW_S - 3 * DAY_S))], {ANN: Mark(0, NOW_S - 3 * DAY_S)})
        store.add([(BEN, use(NOW_S - HOUR_S))], {BEN: Mark(0, NOW_S)})
        store.thin(NOW_S)
        assert [each.user for each in read(path)] == ["ben"]
        with reading(path) as db:
            assert db.execute("SELECT name FROM tenant").fetchall() == [("infer",)]

    def test_the_file_stays_within_its_size(self, open_store: Callable[..., Store], path: Path) -> None:
        limit_bytes = 1 << 20
        store = open_store(max_bytes=limit_bytes)
        for day in range(40):
            uses = [(ANN, use(NOW_S + day * DAY_S + 10 * number)) for number in range(1000)]
            store.add(uses, {ANN: Mark(0, NOW_S)})
            store.thin(NOW_S + day * DAY_S)
            assert path.stat().st_size <= limit_bytes
        assert read(path, since_s=NOW_S + 39 * DAY_S), "the newest are kept"
        store.add([(ANN, use(NOW_S + 41 * DAY_S))], {ANN: Mark(0, NOW_S)})

    def test_another_programs_database_is_left_alone(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.sqlite"
        db = sqlite3.connect(mine)
        db.execute("CREATE TABLE thesis (chapter TEXT)")
        db.commit()
        db.close()
        content = mine.read_bytes()
        with pytest.raises(HistoryError, match="another program"):
            Store(mine, DAY_S, 1 << 20)
        with pytest.raises(HistoryError, match="another program"), reading(mine):
            pass
        assert mine.read_bytes() == content

    @pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 9000], ids=["text", "header"])
    def test_a_broken_file_is_moved_aside(self, open_store: Callable[..., Store], path: Path, content: bytes) -> None:
        path.parent.mkdir()
        path.write_bytes(content)
        store = open_store()
        assert store.moved_to is not None and store.moved_to.read_bytes() == content
        store.add([(ANN, use())], {ANN: Mark(0, NOW_S)})
        assert len(read(path)) == 1

    def test_one_of_a_newer_version(self, open_store: Callable[..., Store], path: Path) -> None:
        open_store().close()
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99")
        db.close()
        with pytest.raises(HistoryError, match="newer"):
            Store(path, DAY_S, 1 << 20)

    def test_one_writer(self, open_store: Callable[..., Store], path: Path) -> None:
        open_store()
        with pytest.raises(HistoryInUseError, match="another exporter"):
            Store(path, DAY_S, 1 << 20)

    def test_a_place_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(HistoryError, match="--no-history"):
            Store(tmp_path / "file" / "history", DAY_S, 1 << 20)

    def test_a_full_disk(self, open_store: Callable[..., Store], path: Path) -> None:
        path.parent.mkdir()
        size = "size=128k"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path.parent)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        try:
            store = open_store()
            store.add([(ANN, use())], {ANN: Mark(0, NOW_S)})
            filler = path.parent / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(512))
            uses = [(ANN, use(NOW_S + 10 * number)) for number in range(2000)]
            with pytest.raises(HistoryError, match=r"full|I/O"):
                store.add(uses, {ANN: Mark(0, NOW_S)})
            kept = read(path)[0].gpu_seconds
            filler.unlink()
            store.add([(ANN, use(NOW_S - 10))], {ANN: Mark(0, NOW_S)})
            assert read(path)[0].gpu_seconds == kept + 5
            store.close()
        finally:
            subprocess.run(["umount", "--lazy", str(path.parent)], check=True)

    def test_a_writer_that_is_killed_leaves_whole_transactions(self, path: Path) -> None:
        for _ in range(5):
            ready, writer = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(path, writer))
            process.start()
            ready.recv()
            time.sleep(random.random() * 0.05)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            Store(path, DAY_S, 1 << 24).close()  # undoes what was left in the middle
            by_user = {each.user: each.gpu_seconds for each in read(path)}
            assert by_user["ann"] == by_user["ben"] > 0, "both are written together"


def write_for_ever(path: Path, ready: multiprocessing.connection.Connection) -> None:  # type: ignore[name-defined]
    store = Store(path, DAY_S, 1 << 24)
    number = 0
    while True:
        uses = [(who, use(NOW_S + 10 * number)) for who in (ANN, BEN)]
        store.add(uses, {ANN: Mark(0, NOW_S), BEN: Mark(0, NOW_S)})
        number += 1
        if number == 1:
            ready.send(True)


class TestAccounts:
    @pytest.fixture
    def filled(self, open_store: Callable[..., Store], path: Path) -> Path:
        store = open_store()
        second = replace(ANN, gpu="GPU-other", gpu_number="1")
        again = replace(ANN, container="3", name="eval")
        uses = [
            (ANN, use(NOW_S, gpu_s=4)),
            (ANN, use(NOW_S + 10, gpu_s=6, memory_bytes=3 * GIB)),
            (again, use(NOW_S + 10, gpu_s=1)),
            (second, use(NOW_S, gpu_s=2)),
            (BEN, use(NOW_S, gpu_s=9)),
        ]
        store.add(uses, {who: Mark(0, NOW_S) for who, _ in uses})
        return path

    def test_by_user(self, filled: Path) -> None:
        first, *others = read(filled)
        assert (first.user, first.gpu_number, first.gpu_seconds, first.ran_seconds) == ("ann", "0", 11, 30)
        assert first.mean_share_ratio == pytest.approx(11 / 30) and first.max_share_ratio == 0.6
        assert first.memory_byte_hours == pytest.approx((10 + 30 + 10) * GIB / HOUR_S)
        assert (first.memory_peak_bytes, first.container) == (3 * GIB, "")
        assert [(each.user, each.gpu_number, each.gpu_seconds) for each in others] == [("ben", "0", 9), ("ann", "1", 2)]

    def test_by_container_and_gpu(self, filled: Path) -> None:
        assert [(each.container, each.container_id, each.gpu_seconds) for each in read(filled, "container")] == [
            ("train", "1", 10),
            ("infer", "2", 9),
            ("train", "1", 2),
            ("eval", "3", 1),
        ]
        assert [(each.gpu_number, each.gpu_seconds, each.user) for each in read(filled, "gpu")] == [
            ("0", 20, ""),
            ("1", 2, ""),
        ]

    def test_of_a_time(self, filled: Path) -> None:
        assert sum(each.gpu_seconds for each in read(filled, since_s=NOW_S + 10)) == 7
        assert sum(each.gpu_seconds for each in read(filled, until_s=NOW_S + 10)) == 15
        assert read(filled, since_s=NOW_S + 100) == []

    def test_over_time(self, filled: Path) -> None:
        with reading(filled) as db:
            found = timeline(db, "user", 0, 2e10)
            nothing = timeline(db, "user", 0, 1)
        assert list(found.moments_s) == [NOW_S, NOW_S + 10] and found.step_s == 10
        by_key = {(curve.key, curve.gpu_number): curve for curve in found.curves}
        assert by_key["ann", "0"].shares == pytest.approx([0.4, 0.7])
        assert by_key["ann", "0"].memory_bytes == pytest.approx([GIB, 4 * GIB])
        assert nothing.curves == ()

    def test_pictures(self, filled: Path, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        from vgpurun.metrics.plot import draw

        with reading(filled) as db:
            found = timeline(db, "container", 0, 2e10)
        odd = [replace(curve, key=f"_${number}$") for number in range(12) for curve in found.curves[:1]]
        draw(replace(found, curves=[*found.curves, *odd]), "Use", tmp_path / "use.svg")
        draw(found, "Use", tmp_path / "use.png")
        text = (tmp_path / "use.svg").read_text()
        assert text.count("<svg") == 1 and "</svg>" in text
        assert (tmp_path / "use.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(HistoryError, match="cannot be written"):
            draw(found, "Use", tmp_path / "none" / "use.png")

    def test_where_there_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
        with pytest.raises(HistoryError, match="vgpurun exporter keeps one"):
            accounting.find_history()
