"""A launch waits for the keeper of its group, and no longer than that may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import wait_until
from vgpurun.errors import TogetherError
from vgpurun.together import joining as module
from vgpurun.together.group import Group
from vgpurun.together.joining import Membership


@pytest.mark.parametrize(
    ("keeper", "words"),
    [
        ("open(sys.argv[1] + '/said', 'w').write(str(os.getpid())); print('no', end='', flush=True); time.sleep(60)",
         "its keeper has said nothing for 1 s, and was killed"),
        ("print('out of order')", "out of order"),
        ("os.close(1)", "its keeper ended"),
    ],
    ids=["silent", "failed", "ended"],
)  # fmt: skip
@pytest.mark.timeout(30)
def test_a_keeper_that_does_not_begin_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeper: str, words: str
) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(module, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(
        module, "_KEEPER", f"import os, sys, time; os.fork() and os._exit(0); sys.argv[1] = {str(tmp_path)!r}; {keeper}"
    )
    (tmp_path / "team").mkdir()
    membership = Membership(Group.of(tmp_path / "team"), Path("/no/program"), ())
    with pytest.raises(TogetherError, match=f"no MPS server for slice team: {words}"), membership.joined():
        pass
    if words.startswith("its keeper has said nothing"):
        pid = (tmp_path / "said").read_text()
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
