"""The history's sums by user, container and GPU, over time, and drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes import GIB
from histories import ANN, BEN, NOW_S, read, use

from vgpurun.cli.commands.history import history as history_command
from vgpurun.cli.views.history import show
from vgpurun.errors import HistoryError, OptionError
from vgpurun.metrics import accounting
from vgpurun.metrics.accounting import reading, timeline
from vgpurun.metrics.store import HOUR_S, Mark, Recorded, Store


@pytest.fixture
def filled(open_store: Callable[..., Store], history: Path) -> Path:
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
    spans = [Recorded(int(NOW_S) + each, 10, 10, 10) for each in (0, 10)]
    store.add(uses, {who: Mark(0, NOW_S) for who, _ in uses}, spans)
    return history


def test_by_user(filled: Path) -> None:
    first, *others = read(filled)
    assert (first.user, first.gpu_number, first.gpu_seconds, first.ran_seconds) == ("ann", "0", 11, 30)
    assert first.mean_share_ratio == pytest.approx(11 / 30) and first.max_share_ratio == 0.6
    assert first.memory_byte_hours == pytest.approx((10 + 30 + 10) * GIB / HOUR_S)
    assert (first.memory_peak_bytes, first.container) == (3 * GIB, "")
    assert (first.idle_seconds, first.given_back_seconds) == (15, 7.5)
    assert [(each.user, each.gpu_number, each.gpu_seconds) for each in others] == [("ben", "0", 9), ("ann", "1", 2)]


def test_by_container_and_gpu(filled: Path) -> None:
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


def test_the_table_has_the_hours_held_idle_and_given_back(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = read(filled)
    show([replace(first, idle_seconds=5400, given_back_seconds=9000)], "user", "table")
    header, row = capsys.readouterr().out.splitlines()
    assert header.endswith("IDLE  GIVEN BACK") and row.split()[-2:] == ["1.50", "2.50"]


def test_of_a_time(filled: Path) -> None:
    assert sum(each.gpu_seconds for each in read(filled, since_s=NOW_S + 10)) == 7
    assert sum(each.gpu_seconds for each in read(filled, until_s=NOW_S + 10)) == 15
    assert read(filled, since_s=NOW_S + 100) == []


def test_over_time(filled: Path) -> None:
    with reading(filled) as db:
        found = timeline(db, "user", 0, 2e10)
        nothing = timeline(db, "user", 0, 1)
    assert list(found.edges_s) == [NOW_S, NOW_S + 10, NOW_S + 20] and list(found.is_sampled) == [True, True]
    by_key = {(curve.key, curve.gpu_number): curve for curve in found.curves}
    assert by_key["ann", "0"].shares == pytest.approx([0.4, 0.7])
    assert by_key["ann", "0"].memory_bytes == pytest.approx([GIB, 4 * GIB])
    assert nothing.curves == ()


def test_a_step_that_has_just_begun_is_as_high_as_the_others(open_store: Callable[..., Store], history: Path) -> None:
    store = open_store()
    begin_s = NOW_S - 20 * 24 * HOUR_S
    spans = [(begin_s + hour * HOUR_S, HOUR_S) for hour in range(480)]
    uses = [(ANN, use(start_s, span_s, gpu_s=span_s / 2)) for start_s, span_s in [*spans, (NOW_S, 10)]]
    recorded = [Recorded(each.start_s, each.span_s, each.span_s, each.span_s) for _, each in uses]
    store.add(uses, {ANN: Mark(0, NOW_S)}, recorded)
    with reading(history) as db:
        found = timeline(db, "user", begin_s, NOW_S + 11)
    assert found.edges_s[-1] == NOW_S + 11, "not the future"
    assert found.edges_s[-1] - found.edges_s[-2] < found.edges_s[1] - found.edges_s[0]
    assert [*found.curves[0].shares] == [pytest.approx(0.5)] * len(found.is_sampled)
    assert [*found.curves[0].memory_bytes] == [pytest.approx(GIB)] * len(found.is_sampled)


@pytest.mark.slow
def test_pictures(filled: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vgpurun.metrics.plot import draw

    with reading(filled) as db:
        found = timeline(db, "container", 0, 2e10)
    odd = [replace(curve, key=f"_${number}$") for number in range(12) for curve in found.curves[:1]]
    draw(replace(found, curves=[*found.curves, *odd]), "Use", tmp_path / "use.svg")
    draw(replace(found, is_sampled=[True, False]), "Use", tmp_path / "gap.svg")
    draw(found, "Use", tmp_path / "use.png")
    text = (tmp_path / "use.svg").read_text()
    assert text.count("<svg") == 1 and "</svg>" in text
    assert "no exporter ran" not in text and "no exporter ran" in (tmp_path / "gap.svg").read_text()
    assert (tmp_path / "use.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(HistoryError, match="cannot be written"):
        draw(found, "Use", tmp_path / "none" / "use.png")


def test_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    with pytest.raises(HistoryError, match="vgpurun exporter keeps one"):
        accounting.find_history()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plot", "use.svg", "--format", "csv"), "--format csv is for printed output, and --plot draws a picture"),
        (("--plot", "use.svg", "--format", "table"), "leave out one"),
        (("--plot", "use.gif"), "neither a .png nor a .svg"),
        (("--since", "2999-01-01"), "--since '2999-01-01' is not in the past"),
        (("--since", "2030"), "--since '2030' is neither a date nor has a unit; use e.g. 7d"),
        (("--since", "7"), "--since '7' is neither a date"),
        (("--until", "2030"), "--until '2030' is neither"),
        (("--since", "1h", "--until", "2h"), "--since '1h' is not before --until '2h'"),
    ],
    ids=str,
)
def test_what_is_asked_for_by_mistake(filled: Path, arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(history_command, ["--history", str(filled), *arguments])
    assert isinstance(result.exception, OptionError) and words in str(result.exception)
