"""Sums up which user used how much of which GPU, from the history that an exporter keeps."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vgpurun.errors import HistoryError
from vgpurun.metrics.schema import VERSION
from vgpurun.metrics.store import HOUR_S, check_version, copy_of
from vgpurun.storage import state

FILE_NAME = "history.sqlite"
# The kinds of rows, and the fields of a tenant that each names.
KEYS = {"user": ("user",), "container": ("user", "name", "container"), "gpu": ()}
_BUSY_S = 5.0
_MOST_POINTS = 300


@dataclass(frozen=True)
class Account:
    """The use of a GPU by a user, by a container, or by all together. Fields that a row does not stand for are empty.

    Containers were seen to run for `ran_seconds`. Their GPU time was measured over `measured_seconds`, also while no
    exporter ran, and estimated over `estimated_seconds`; `mean_share_ratio` is of these, and None without. The
    highest share is over one sample, and like the highest memory that of one container. For `idle_seconds` they held
    memory and used no GPU time, and for `given_back_seconds` they were suspended.
    """

    user: str
    container: str
    container_id: str
    gpu_uuid: str
    gpu_number: str
    gpu_model: str
    gpu_seconds: float
    ran_seconds: float
    measured_seconds: float
    estimated_seconds: float
    mean_share_ratio: float | None
    max_share_ratio: float | None
    memory_byte_hours: float
    memory_peak_bytes: int
    idle_seconds: float
    given_back_seconds: float
    first_seconds: int
    last_seconds: int


@dataclass(frozen=True)
class Curve:
    """A key's GPU share and memory over time on one GPU, a value for each of the timeline's steps."""

    key: str
    gpu_number: str
    gpu_model: str
    shares: Sequence[float]
    memory_bytes: Sequence[float]


@dataclass(frozen=True)
class Timeline:
    """Curves over the same steps, which lie between `edges_s` (seconds since 1970).

    `is_sampled`: whether an exporter ran in the step; else no memory is known, and GPU time only by counters.
    """

    edges_s: Sequence[float]
    is_sampled: Sequence[bool]
    curves: Sequence[Curve]


def default_path() -> Path:
    """Return where an exporter of this user keeps its history."""
    return state.root_folder() / FILE_NAME


def find_history() -> Path:
    """Return this user's own history, or else root's. Raises HistoryError where there is none."""
    places = [root / FILE_NAME for root in state.visible_roots()]
    for path in places:
        if path.exists():
            return path
    raise HistoryError(f"there is no history at {' or '.join(map(str, places))}: vgpurun exporter keeps one")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a history for reading alone, or its copy where it is another user's.

    Raises HistoryError, also for what fails while it is read.
    """
    if not path.exists():
        raise HistoryError(f"there is no history at {path}: vgpurun exporter keeps one")
    how = "mode=ro"
    if not os.access(path, os.R_OK) and copy_of(path).exists():
        path, how = copy_of(path), "immutable=1"  # another one takes its place
    try:
        db = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=_BUSY_S)
        try:
            if check_version(db, path) < VERSION:
                raise HistoryError(f"the history {path} was written by an older vgpurun: start vgpurun exporter once")
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        if "readonly" in str(error):  # a killed writer's journal has to be undone first
            raise HistoryError(f"the history {path} was left in the middle: start vgpurun exporter once") from None
        raise HistoryError(f"the history {path} cannot be read: {error}") from None


def accounts(db: sqlite3.Connection, by: str, since_s: float, until_s: float) -> list[Account]:
    """Return one account for each of these on each GPU, the largest use first. Spans count as a whole."""
    keys = KEYS[by]
    named = ", ".join(f"tenant.{key}" if key in keys else "''" for key in ("user", "name", "container"))
    rows = db.execute(
        f"""
        SELECT {named}, gpu.uuid, gpu.number, gpu.model, sum(gpu_s), sum(ran_s), sum(measured_s), sum(estimated_s),
          max(max_share), sum(memory_byte_s), max(memory_peak_bytes), sum(idle_s), sum(given_back_s),
          min(start_s), min(max(start_s + span_s), ?)
        FROM use JOIN tenant ON tenant.id = use.tenant JOIN gpu ON gpu.id = use.gpu
        WHERE start_s + span_s > ? AND start_s < ?
        GROUP BY {", ".join(["gpu.id", *(f"tenant.{key}" for key in keys)])}
        ORDER BY sum(gpu_s) DESC, sum(memory_byte_s) DESC, gpu.number
        """,
        (int(until_s), since_s, until_s),
    )
    return [_account(row) for row in rows]


def _account(row: Sequence[Any]) -> Account:
    user, name, container, uuid, number, model, gpu_s, ran_s, measured_s, estimated_s, share, *memory = row
    byte_s, peak_bytes, idle_s, given_back_s, first, last = memory
    known_s = measured_s + estimated_s
    return Account(
        user=user, container=name, container_id=container, gpu_uuid=uuid, gpu_number=number, gpu_model=model,
        gpu_seconds=gpu_s, ran_seconds=ran_s, measured_seconds=measured_s,
        estimated_seconds=estimated_s,
        mean_share_ratio=gpu_s / known_s if known_s else None,
        max_share_ratio=share if known_s else None,
        memory_byte_hours=byte_s / HOUR_S, memory_peak_bytes=peak_bytes,
        idle_seconds=idle_s, given_back_seconds=given_back_s, first_seconds=first, last_seconds=last,
    )  # fmt: skip


def timeline(db: sqlite3.Connection, by: str, since_s: float, until_s: float) -> Timeline:
    """Return how use went on over time, in steps that are no finer than what is kept of it.

    A step's value is over what was recorded of it: so one that has just begun, or that an exporter missed in part, is
    as high as the others.
    """
    where = "start_s + span_s > ? AND start_s < ?"
    first, last, coarsest = db.execute(
        f"SELECT min(start_s), max(start_s + span_s), max(span_s) FROM recorded WHERE {where}", (since_s, until_s)
    ).fetchone()
    if first is None:
        return Timeline((), (), ())
    step_s = max(coarsest, _step(last - first))
    begin = first // step_s * step_s
    starts = range(begin, last, step_s)
    seconds = [(0.0, 0.0)] * len(starts)
    for place, *sums in db.execute(
        f"SELECT (start_s - ?) / ?, sum(counted_s), sum(sampled_s) FROM recorded WHERE {where} GROUP BY 1",
        (begin, step_s, since_s, until_s),
    ):
        seconds[place] = (sums[0], sums[1])
    key = {"user": "tenant.user", "container": "tenant.name", "gpu": "'GPU ' || gpu.number"}[by]
    rows = db.execute(
        f"""
        SELECT {key}, gpu.number, gpu.model, (start_s - ?) / ?, sum(gpu_s), sum(memory_byte_s)
        FROM use JOIN tenant ON tenant.id = use.tenant JOIN gpu ON gpu.id = use.gpu
        WHERE {where} GROUP BY 1, gpu.id, 4
        """,
        (begin, step_s, since_s, until_s),
    )
    found: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    for name, number, model, place, gpu_s, byte_s in rows:
        none = ([0.0] * len(starts), [0.0] * len(starts))
        shares, memory_bytes = found.setdefault((name, number, model), none)
        place = min(max(place, 0), len(starts) - 1)
        counted_s, sampled_s = seconds[place]
        shares[place] += gpu_s / counted_s if counted_s else 0.0
        memory_bytes[place] += byte_s / sampled_s if sampled_s else 0.0
    edges = [max(begin, since_s), *starts[1:], min(starts[-1] + step_s, until_s)]
    curves = [Curve(*key, *values) for key, values in sorted(found.items())]
    return Timeline(edges, [sampled_s > 0 for _, sampled_s in seconds], curves)


def _step(duration_s: int) -> int:
    """A round step that makes some hundred points of a duration."""
    for step_s in (10, 30, 60, 300, 600, 1800, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 24 * HOUR_S):
        if duration_s / step_s <= _MOST_POINTS:
            return step_s
    return 24 * HOUR_S
