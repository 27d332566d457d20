"""The file in which use is kept: SQLite, bounded in age and size.

Use is kept in spans of time: fine ones of late, coarser ones of long ago. Everything in a span is a sum or a maximum,
so merging spans loses only resolution in time. There is one writer, which holds the kernel's lock on a file beside it;
a killed one cannot leave that behind. The journal is SQLite's rollback journal, since a reader then needs no right to
write.

SQLite locks the file itself, and a reader that keeps its lock stops the writer. So nobody but its owner can open it;
other users read a copy, which is made every few minutes.
"""

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from vgpurun.errors import HistoryError
from vgpurun.metrics.schema import APPLICATION_ID, VERSION, layout
from vgpurun.storage.state import is_readable_by_all, make_readable
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.locking import open_lock

HOUR_S = 3600
# Spans above the recorder's own, in seconds, and for how long finer ones are kept.
FINE_KEPT_S, MIDDLE_S, MIDDLE_KEPT_S = 6 * HOUR_S, 300, 14 * 24 * HOUR_S
_BUSY_S = 5.0  # to wait for another process that uses the file
_FORGET_S = 24 * HOUR_S  # a tenant that was not seen for so long is another one when it comes again
_DELETED_AT_ONCE = 0.1


@dataclass(frozen=True)
class Who:
    """A tenant on a GPU. `container` is its id."""

    container: str
    name: str
    user: str
    kind: str
    gpu: str
    gpu_number: str
    gpu_model: str


@dataclass(frozen=True)
class Use:
    """A tenant's use of a GPU in a span that begins at `start_s` (seconds since 1970).

    It was seen to run for `ran_s`. GPU time was measured over `measured_s`, by a counter that goes on while no exporter
    runs, and estimated over `estimated_s`; else it is not known. For `idle_s` it held memory and used no GPU time; for
    `given_back_s` it was suspended.
    """

    start_s: int
    span_s: int
    ran_s: float
    measured_s: float
    estimated_s: float
    gpu_s: float
    max_share: float
    memory_byte_s: float
    memory_peak_bytes: int
    idle_s: float = 0.0
    given_back_s: float = 0.0


@dataclass(frozen=True)
class Recorded:
    """How much of a span an exporter sampled, and over how much of it counters tell the GPU time."""

    start_s: int
    span_s: int
    sampled_s: float
    counted_s: float


@dataclass(frozen=True)
class Mark:
    """How far a tenant's GPU time was counted: `busy_s` of it, at `at_s` seconds since 1970."""

    busy_s: float
    at_s: float


class HistoryInUseError(HistoryError):
    """Another exporter writes this history."""


class Store:
    """The history, open for writing. Every method raises HistoryError, and then nothing of it was kept."""

    def __init__(self, path: Path, keep_s: int, max_bytes: int) -> None:
        """Open it, made first if need be. A broken file is moved aside: `moved_to` says where."""
        self.path = path
        self.moved_to: Path | None = None
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        try:
            make_readable(path.parent)
            self._lock = open_lock(f"{path}.lock")
            os.close(open_lock(path))  # made for its owner alone
        except OSError as error:
            raise HistoryError(f"the history {path} cannot be made: {error.strerror}; {_WAY_OUT}") from None
        try:
            self._take_lock()
            self._db = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the file, and let another exporter write it; once more does nothing."""
        with suppress(sqlite3.Error):
            self._db.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def publish(self) -> None:
        """Make the copy that other users read, where they can pass to it."""
        try:
            if is_readable_by_all(self.path.parent):
                with atomic_file(copy_of(self.path), is_flushed=False) as half_made:
                    shutil.copyfile(self.path, half_made)  # nothing is written to it meanwhile but by this thread
        except OSError as error:
            raise HistoryError(f"the history's copy for other users cannot be made: {error.strerror}") from None

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HistoryInUseError(f"the history {self.path} is written by another exporter") from None

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            raise HistoryError(f"the history {self.path} cannot be opened: {error}; {_WAY_OUT}") from None
        except sqlite3.DatabaseError:
            self._move_aside()
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise HistoryError(f"the history {self.path} cannot be made: {error}; {_WAY_OUT}") from None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            version = check_version(db, self.path)
            if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("malformed")
            db.execute("PRAGMA foreign_keys = ON")
            page_bytes = db.execute("PRAGMA page_size").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {max(self._max_bytes // page_bytes, 64)}")
            db.executescript(layout(version))
            self._status = self.path.stat()
        except BaseException:
            db.close()
            raise
        return db

    def _move_aside(self) -> None:
        moved = self.path.with_name(f"{self.path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            with suppress(FileNotFoundError):
                self.path.rename(moved)
            Path(f"{self.path}-journal").unlink(missing_ok=True)  # belongs to the broken file
        except OSError as error:
            raise HistoryError(f"the history {self.path} is broken, and cannot be moved: {error.strerror}") from None
        self.moved_to = moved

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            if not self._is_in_place():
                self._db.close()
                self._db = self._open()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise HistoryError(f"the history {self.path} cannot be written: {error}") from None
        except sqlite3.DatabaseError:
            self._db.close()
            self._move_aside()
            self._db = self._open()
            raise HistoryError(f"the history {self.path} was broken: moved to {self.moved_to}") from None

    def _is_in_place(self) -> bool:
        """Whether the file that is open is still the one at its path; somebody may have removed it, to begin anew."""
        try:
            return os.path.samestat(self.path.stat(), self._status)
        except OSError:
            return False

    def add(
        self, uses: Iterable[tuple[Who, Use]], marks: Mapping[Who, Mark], recorded: Iterable[Recorded] = ()
    ) -> None:
        """Add to what is kept, and note how far was counted."""
        with self._transaction() as db:
            ids: dict[Who, tuple[int, int]] = {}
            for who in marks:
                ids[who] = _ids(db, who)
            for who, use in uses:
                db.execute(_ADD, (*ids[who], *_values(use)))
            db.executemany(_ADD_RECORDED, map(astuple, recorded))
            db.executemany(
                "INSERT OR REPLACE INTO mark (tenant, gpu, busy_s, at_s) VALUES (?, ?, ?, ?)",
                [(*ids[who], mark.busy_s, mark.at_s) for who, mark in marks.items()],
            )

    def marks(self) -> dict[Who, Mark]:
        """Return how far each tenant was counted that was seen in the last day."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT container, name, user, kind, uuid, number, model, busy_s, at_s FROM mark"
                " JOIN tenant ON tenant.id = mark.tenant JOIN gpu ON gpu.id = mark.gpu"
            ).fetchall()
        return {Who(*row[:7]): Mark(*row[7:]) for row in rows}

    def thin(self, now_s: float) -> None:
        """Make coarser spans of what is older, and forget what is too old or too much."""
        with self._transaction() as db:
            _coarsen(db, MIDDLE_S, now_s - FINE_KEPT_S)
            _coarsen(db, HOUR_S, now_s - MIDDLE_KEPT_S)
            for table in ("use", "recorded"):
                db.execute(f"DELETE FROM {table} WHERE start_s < ?", (now_s - self._keep_s,))
            db.execute("DELETE FROM mark WHERE at_s < ?", (now_s - _FORGET_S,))
        while self._used_bytes() > 0.9 * self._max_bytes and self._forget_oldest():
            pass
        with self._transaction() as db:
            known = "SELECT {0} FROM use UNION SELECT {0} FROM mark"
            db.execute(f"DELETE FROM tenant WHERE id NOT IN ({known.format('tenant')})")
            db.execute(f"DELETE FROM gpu WHERE id NOT IN ({known.format('gpu')})")

    def _used_bytes(self) -> int:
        pages, free, page_bytes = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page_bytes)

    def _forget_oldest(self) -> bool:
        """Forget a tenth of it, or say that there is nothing left to forget."""
        with self._transaction() as db:
            count = db.execute("SELECT COUNT(*) FROM use").fetchone()[0]
            found = db.execute(
                "SELECT start_s FROM use ORDER BY start_s LIMIT 1 OFFSET ?", (int(count * _DELETED_AT_ONCE),)
            ).fetchone()
            if found is None:
                return False
            db.execute("DELETE FROM recorded WHERE start_s <= ?", found)
            return db.execute("DELETE FROM use WHERE start_s <= ?", found).rowcount > 0


_WAY_OUT = "choose another place with --history, or none with --no-history"

_ADD = """
INSERT INTO use (tenant, gpu, start_s, span_s, ran_s, measured_s, estimated_s, gpu_s, max_share, memory_byte_s,
  memory_peak_bytes, idle_s, given_back_s)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (span_s, start_s, tenant, gpu) DO UPDATE SET
  ran_s = ran_s + excluded.ran_s, measured_s = measured_s + excluded.measured_s,
  estimated_s = estimated_s + excluded.estimated_s, gpu_s = gpu_s + excluded.gpu_s,
  max_share = max(max_share, excluded.max_share), memory_byte_s = memory_byte_s + excluded.memory_byte_s,
  memory_peak_bytes = max(memory_peak_bytes, excluded.memory_peak_bytes), idle_s = idle_s + excluded.idle_s,
  given_back_s = given_back_s + excluded.given_back_s
"""

_COARSEN = """
INSERT INTO use (tenant, gpu, start_s, span_s, ran_s, measured_s, estimated_s, gpu_s, max_share, memory_byte_s,
  memory_peak_bytes, idle_s, given_back_s)
SELECT tenant, gpu, start_s - start_s % :coarse, :coarse, sum(ran_s), sum(measured_s), sum(estimated_s),
  sum(gpu_s), max(max_share), sum(memory_byte_s), max(memory_peak_bytes), sum(idle_s), sum(given_back_s)
FROM use WHERE span_s < :coarse AND start_s < :before
GROUP BY tenant, gpu, start_s - start_s % :coarse
""" + _ADD[_ADD.index("ON CONFLICT") :]

_ADD_RECORDED = """
INSERT INTO recorded (start_s, span_s, sampled_s, counted_s) VALUES (?, ?, ?, ?)
ON CONFLICT (span_s, start_s) DO UPDATE SET
  sampled_s = sampled_s + excluded.sampled_s, counted_s = counted_s + excluded.counted_s
"""

_COARSEN_RECORDED = """
INSERT INTO recorded (start_s, span_s, sampled_s, counted_s)
SELECT start_s - start_s % :coarse, :coarse, sum(sampled_s), sum(counted_s)
FROM recorded WHERE span_s < :coarse AND start_s < :before
GROUP BY start_s - start_s % :coarse
""" + _ADD_RECORDED[_ADD_RECORDED.index("ON CONFLICT") :]


def _coarsen(db: sqlite3.Connection, coarse_s: int, before_s: float) -> None:
    limits = {"coarse": coarse_s, "before": int(before_s - before_s % coarse_s)}
    for table, statement in (("use", _COARSEN), ("recorded", _COARSEN_RECORDED)):
        db.execute(statement, limits)
        db.execute(f"DELETE FROM {table} WHERE span_s < :coarse AND start_s < :before", limits)


def _values(use: Use) -> tuple[float, ...]:
    return (
        use.start_s, use.span_s, use.ran_s, use.measured_s, use.estimated_s, use.gpu_s, use.max_share,
        use.memory_byte_s, use.memory_peak_bytes, use.idle_s, use.given_back_s,
    )  # fmt: skip


def _ids(db: sqlite3.Connection, who: Who) -> tuple[int, int]:
    """Return the numbers of a tenant and of a GPU, which are given when they are seen first."""
    db.execute(
        "INSERT OR IGNORE INTO tenant (container, name, user, kind) VALUES (?, ?, ?, ?)",
        (who.container, who.name, who.user, who.kind),
    )
    db.execute(
        "INSERT INTO gpu (uuid, number, model) VALUES (?, ?, ?)"
        " ON CONFLICT (uuid) DO UPDATE SET number = excluded.number, model = excluded.model",
        (who.gpu, who.gpu_number, who.gpu_model),
    )
    tenant = db.execute(
        "SELECT id FROM tenant WHERE container = ? AND name = ? AND user = ?", (who.container, who.name, who.user)
    ).fetchone()
    gpu = db.execute("SELECT id FROM gpu WHERE uuid = ?", (who.gpu,)).fetchone()
    return tenant[0], gpu[0]


def copy_of(path: Path) -> Path:
    """Return where the copy of a history is that users read who may not read the history itself."""
    return path.with_name(f"{path.stem}.copy{path.suffix}")


def check_version(db: sqlite3.Connection, path: Path) -> int:
    """Raise HistoryError for a database that is another program's, or of a newer vgpurun. Returns its version."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    is_new = application == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone()
    if not is_new and application != APPLICATION_ID:
        raise HistoryError(f"{path} is another program's database, not a history of vgpurun; {_WAY_OUT}")
    if version > VERSION:
        raise HistoryError(f"the history {path} was written by a newer vgpurun; {_WAY_OUT}")
    return int(version)
