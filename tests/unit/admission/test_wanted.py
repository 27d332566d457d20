"""The options of limits and placement are taken, whichever verb has them and whatever a launch joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import given, passed_on

from vgpurun.admission.wanted import Wanted
from vgpurun.cli.commands.run import run
from vgpurun.cli.commands.slice import create
from vgpurun.limits.nested import Share
from vgpurun.limits.quota import Quota
from vgpurun.options.table import FLAGS

SHARE = Share(Path("/run/share"), (("GPU-0", Quota(memory_bytes=1 << 30, sm_percent=50)),))


@pytest.mark.parametrize(
    ("options", "share"),
    [(given(), None), (given(slice_name="alice"), None), (given(slice_name="alice", mem="1g"), None), (given(), SHARE)],
    ids=["a launch", "in a slice", "with limits in a slice", "in a share"],
)
def test_no_option_is_left_behind(options: dict[str, object], share: Share | None) -> None:
    Wanted.take(options, share=share)
    assert options == {}


def test_other_verbs_have_the_same_options() -> None:
    assert passed_on(run).keys() - FLAGS == given().keys()
    assert passed_on(create).keys() | {"slice_name", "idle", "together"} == given().keys()
