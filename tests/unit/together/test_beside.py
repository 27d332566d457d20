"""The time that a group was off its GPUs, by the GPUs' own records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from vgpurun.errors import ChannelError
from vgpurun.host.gpu_records import Record
from vgpurun.together import beside as module
from vgpurun.together.beside import Beside

OWN, OTHER = 1, 2
MS = 1_000_000


class Records:
    """Records of two GPUs, of which the second one is not the group's."""

    uuids = ("GPU-1", "GPU-2")

    def __init__(self) -> None:
        self.time_ns = 0
        self.new: list[Record] = []
        self.error = False

    def note(self, begins: bool, pid: int, time_ms: int) -> None:
        self.new.append(Record(begins, pid, 0, 0, time_ms * MS))

    def now_ns(self, uuid: str) -> int:
        assert uuid == "GPU-1"
        if self.error:
            raise ChannelError("gone")
        return self.time_ns

    def read(self, _: str) -> Iterator[Record]:
        yield from self.new
        self.new = []

    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[Beside, Records]:
    records = Records()
    monkeypatch.setattr(module.gpu_records, "opened", lambda _: closing(records))
    return Beside("libcuda", ["GPU-1"], lambda pid: pid == OWN), records


def test_the_time_in_which_it_is_off_the_gpu_counts(made: tuple[Beside, Records]) -> None:
    beside, records = made
    for begins, pid, time_ms in (
        (True, OWN, 2),
        (False, OWN, 5),
        (True, OTHER, 6),
        (False, OTHER, 13),
        (True, OWN, 14),
    ):
        records.note(begins, pid, time_ms)
    records.time_ns = 20 * MS
    assert beside.away_s() == pytest.approx(0.009)
    records.note(begins=True, pid=OTHER, time_ms=25)
    records.time_ns = 30 * MS
    assert beside.away_s() == pytest.approx(0.005), "the other is there still"
    records.time_ns = 34 * MS
    assert beside.away_s() == pytest.approx(0.004)


def test_what_the_records_do_not_know_of_pays_for_all(
    made: tuple[Beside, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, records = made
    records.note(begins=True, pid=OTHER, time_ms=0)
    records.time_ns = 10 * MS
    assert beside.away_s() == 0, "none of its own has come yet"
    monkeypatch.setattr(module, "_KNOWN_S", 0.0)
    records.note(begins=True, pid=OWN, time_ms=15)
    records.time_ns = 20 * MS
    assert beside.away_s() == 0, "none has come for long"


def test_without_records_it_pays_for_all(made: tuple[Beside, Records], monkeypatch: pytest.MonkeyPatch) -> None:
    beside, records = made
    records.note(begins=True, pid=OWN, time_ms=1)
    records.error = True
    assert beside.away_s() == 0
    beside.close()

    def refused(_: object) -> None:
        raise ChannelError("for root alone")

    monkeypatch.setattr(module.gpu_records, "opened", refused)
    without = Beside("libcuda", ["GPU-1"], lambda _: True)
    assert without.away_s() == 0 and without.trouble == "for root alone"
    without.close()
