"""`vgpurun prune` beside a user who makes what it removes."""

from __future__ import annotations

import pytest

from vgpurun.cli.commands import prune
from vgpurun.storage import tenants


@pytest.mark.parametrize(("rounds", "words"), [(3, ""), (1 << 20, "prune again")])
def test_nobody_keeps_it_at_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rounds: int, words: str
) -> None:
    left = iter(range(rounds))
    monkeypatch.setattr(tenants, "sweep_others", lambda: next(left, None) is not None)
    prune.sweep_others()
    said = capsys.readouterr().err
    assert words in said and bool(words) == bool(said) == (next(left, None) is not None)
