"""The file of the history: what is kept in it and how coarsely, and what happens to it."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import histories
import pytest
from histories import ANN, BEN, DAY_S, NOW_S, read, use

from support.programs import text_of
from support.second_user import attacked_by, lock_everything_below, needs_two_users, public_folder
from vgpurun.errors import HistoryError
from vgpurun.metrics.accounting import reading, timeline
from vgpurun.metrics.store import HOUR_S, HistoryInUseError, Mark, Recorded, Store


def test_coarser_spans_have_the_same_sums(open_store: Callable[..., Store], history: Path) -> None:
    store = open_store()
    begin_s = NOW_S - 30 * DAY_S
    generator = random.Random(2)
    uses = [
        (generator.choice((ANN, BEN)), use(begin_s + 10 * number, gpu_s=generator.random() * 10))
        for number in range(5000)
    ]
    spans = [Recorded(each.start_s, 10, 10, 10) for _, each in uses]
    store.add(uses, {ANN: Mark(0, NOW_S), BEN: Mark(0, NOW_S)}, spans)
    before = read(history)
    lengths = []
    for age_s in (0, 7 * HOUR_S, 15 * DAY_S, 16 * DAY_S):
        store.thin(begin_s + 50_000 + age_s)
        with reading(history) as db:
            lengths.append(db.execute("SELECT count(*), max(span_s) FROM use").fetchone())
    assert [longest for _, longest in lengths] == [300, 300, 3600, 3600]
    assert lengths[0][0] > lengths[1][0] > lengths[2][0] == lengths[3][0] <= 2 * 15
    with reading(history) as db:
        kept = db.execute("SELECT sum(sampled_s), sum(counted_s), count(*) FROM recorded").fetchone()
    assert kept[:2] == (50_000, 50_000) and kept[2] < 20
    after = read(history)
    for old, new in zip(before, after, strict=True):
        assert new.gpu_seconds == pytest.approx(old.gpu_seconds)
        assert new.ran_seconds == pytest.approx(old.ran_seconds)
        assert new.memory_byte_hours == pytest.approx(old.memory_byte_hours)
        assert new.idle_seconds == pytest.approx(old.idle_seconds) and old.idle_seconds > 0
        assert new.given_back_seconds == pytest.approx(old.given_back_seconds) and old.given_back_seconds > 0
        assert (new.max_share_ratio, new.memory_peak_bytes) == (old.max_share_ratio, old.memory_peak_bytes)


def test_what_is_too_old_is_forgotten_with_its_names(open_store: Callable[..., Store], history: Path) -> None:
    store = open_store(keep_s=DAY_S)
    store.add([(ANN, use(NOW_S - 3 * DAY_S))], {ANN: Mark(0, NOW_S - 3 * DAY_S)})
    store.add([(BEN, use(NOW_S - HOUR_S))], {BEN: Mark(0, NOW_S)})
    store.thin(NOW_S)
    assert [each.user for each in read(history)] == ["ben"]
    with reading(history) as db:
        assert db.execute("SELECT name FROM tenant").fetchall() == [("infer",)]


@pytest.mark.slow
def test_the_file_stays_within_its_size(open_store: Callable[..., Store], history: Path) -> None:
    limit_bytes = 1 << 20
    store = open_store(max_bytes=limit_bytes)
    for day in range(40):
        uses = [(ANN, use(NOW_S + day * DAY_S + 10 * number)) for number in range(1000)]
        store.add(uses, {ANN: Mark(0, NOW_S)})
        store.thin(NOW_S + day * DAY_S)
        assert history.stat().st_size <= limit_bytes
    assert read(history, since_s=NOW_S + 39 * DAY_S), "the newest are kept"
    store.add([(ANN, use(NOW_S + 41 * DAY_S))], {ANN: Mark(0, NOW_S)})


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
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
def test_a_broken_file_is_moved_aside(open_store: Callable[..., Store], history: Path, content: bytes) -> None:
    history.parent.mkdir()
    history.write_bytes(content)
    store = open_store()
    assert store.moved_to is not None and store.moved_to.read_bytes() == content
    store.add([(ANN, use())], {ANN: Mark(0, NOW_S)})
    assert len(read(history)) == 1


def test_one_of_a_newer_version(open_store: Callable[..., Store], history: Path) -> None:
    open_store().close()
    db = sqlite3.connect(history)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(HistoryError, match="newer"):
        Store(history, DAY_S, 1 << 20)


@pytest.mark.parametrize(
    ("version", "lacks"),
    [(1, "DROP TABLE recorded;"), (2, "INSERT INTO recorded SELECT 10, start_s, 10, 10 FROM use LIMIT 1;")],
)
def test_one_of_an_older_version_goes_on(
    open_store: Callable[..., Store], history: Path, version: int, lacks: str
) -> None:
    store = open_store()
    store.add([(ANN, use(NOW_S)), (BEN, use(NOW_S))], {ANN: Mark(0, NOW_S), BEN: Mark(0, NOW_S)})
    store.close()
    with sqlite3.connect(history) as db:
        db.executescript(
            "ALTER TABLE use DROP COLUMN idle_s; ALTER TABLE use DROP COLUMN given_back_s; "
            f"{lacks} PRAGMA user_version = {version}"
        )
    db.close()
    with pytest.raises(HistoryError, match="older vgpurun: start vgpurun exporter once"):
        read(history)
    open_store().add([(ANN, use(NOW_S, gpu_s=0))], {ANN: Mark(0, NOW_S)})
    assert {each.user: (each.gpu_seconds, each.idle_seconds) for each in read(history)} == {
        "ann": (5, 5),
        "ben": (5, 0),
    }
    with reading(history) as db:
        assert [*timeline(db, "user", 0, 2e10).curves[0].shares] == [0.5]


def test_one_writer(open_store: Callable[..., Store], history: Path) -> None:
    open_store()
    with pytest.raises(HistoryInUseError, match="another exporter"):
        Store(history, DAY_S, 1 << 20)


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="--no-history"):
        Store(tmp_path / "file" / "history", DAY_S, 1 << 20)


def test_a_full_disk(open_store: Callable[..., Store], history: Path) -> None:
    history.parent.mkdir()
    size = "size=128k"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(history.parent)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        store = open_store()
        store.add([(ANN, use())], {ANN: Mark(0, NOW_S)})
        filler = history.parent / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        uses = [(ANN, use(NOW_S + 10 * number)) for number in range(2000)]
        with pytest.raises(HistoryError, match=r"full|I/O"):
            store.add(uses, {ANN: Mark(0, NOW_S)})
        kept = read(history)[0].gpu_seconds
        filler.unlink()
        store.add([(ANN, use(NOW_S - 10))], {ANN: Mark(0, NOW_S)})
        assert read(history)[0].gpu_seconds == kept + 5
        store.close()
    finally:
        subprocess.run(["umount", "--lazy", str(history.parent)], check=True)


@needs_two_users
def test_another_user_reads_a_copy_and_cannot_hold_the_writer_up() -> None:
    with public_folder() as folder, closing(Store(folder / "history.sqlite", DAY_S, 1 << 24)) as store:
        store.add([(ANN, use())], {ANN: Mark(0, NOW_S)})
        store.publish()

        def attack() -> object:
            assert [each.user for each in read(folder / "history.sqlite")] == ["ann"]
            return lock_everything_below(folder)

        with attacked_by(attack):
            began = time.monotonic()
            store.add([(BEN, use())], {BEN: Mark(0, NOW_S)})
            store.publish()
            assert time.monotonic() - began < 4
            store.close()
            Store(folder / "history.sqlite", DAY_S, 1 << 24).close()
        with attacked_by(lambda: read(folder / "history.copy.sqlite")[1]):
            pass


def test_a_history_of_an_older_version_is_closed_to_others(history: Path, open_store: Callable[..., Store]) -> None:
    open_store().close()
    names = [history, history.with_name(f"{history.name}.lock")]
    for name in names:
        name.chmod(0o644)
    open_store()
    assert [name.stat().st_mode & 0o777 for name in names] == [0o600] * 2


def write_on_and_on() -> None:
    store = Store(Path(sys.argv[1]), DAY_S, 1 << 24)
    marks = {who: Mark(0, NOW_S) for who in (histories.ANN, histories.BEN)}
    for number in count():
        store.add([(who, histories.use(NOW_S + 10 * number)) for who in marks], marks)
        if number == 0:
            print("written", flush=True)


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_transactions(history: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    for _ in range(5):
        command = [sys.executable, "-c", text_of(write_on_and_on), history]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "written\n"
            time.sleep(random.random() * 0.05)
            process.kill()
        Store(history, DAY_S, 1 << 24).close()  # undoes what was left in the middle
        by_user = {each.user: each.gpu_seconds for each in read(history)}
        assert by_user["ann"] == by_user["ben"] > 0, "both are written together"
