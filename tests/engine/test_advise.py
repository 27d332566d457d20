"""`vgpurun advise`: from the profiles of containers to what they would gain from working at the same time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli

FULL = 132 * 32  # blocks of one thread for which the simulated GPU has room


def profiled(vgpurun: Cli, image: str, name: str, folder: Path, blocks: int) -> None:
    asked = ("--name", name, "--mem", "1g", "--profile", str(folder), *WITH_PROGRAMS)
    vgpurun("run", *vgpurun.driver, *asked, image, *GPU_PROGRAM, "spin", "spin_20ms", "0.5", str(blocks)).json()


@pytest.mark.parametrize(("blocks", "filled", "gains"), [(FULL // 8, 12.5, True), (2 * FULL, 100, False)])
def test_two_containers(vgpurun: Cli, debian: str, tmp_path: Path, blocks: int, filled: float, gains: bool) -> None:
    """Two on an eighth of the SMs each have their full pace together, and two that fill the GPU gain nothing."""
    for name in ("one", "other"):
        profiled(vgpurun, debian, name, tmp_path / "shared", blocks)
    advice = json.loads(vgpurun("advise", "--format", "json", "one", "other").stdout)
    both = advice["containers"]
    assert [each["name"] for each in both] == ["one", "other"]
    assert [each["filled_percent"] for each in both] == pytest.approx([filled] * 2, abs=0.01)
    assert [each["filled_known_percent"] for each in both] == [100, 100]
    asked = sum(each["busy_percent"] for each in both) / 100
    assert advice["in_turns_percent"] == pytest.approx(100 / max(asked, 1), abs=0.02)
    assert advice["together_percent"] == pytest.approx(100 if gains else advice["in_turns_percent"], abs=0.02)
    assert len(advice["notes"]) == 1
    said = vgpurun("advise", "one", "other")
    assert (said.exit_code, said.stderr) == (0, "")
    title, *rows, sentence, note = said.stdout.splitlines()
    assert title.split() == ["CONTAINER", "GPU", "BUSY", "FILLED"] and [row.split()[0] for row in rows] == [
        "one",
        "other",
    ]
    assert sentence.startswith("Together each would have about") and ("nothing to gain" in sentence) != gains
    assert "bandwidth" in note


def test_what_cannot_be_compared(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    vgpurun("run", *vgpurun.driver, "--name", "bare", "--mem", "1g", debian, "true")
    profiled(vgpurun, debian, "one", tmp_path / "p", 1)
    vgpurun("run", *vgpurun.driver, "--name", "idle", "--mem", "1g", "--profile", str(tmp_path / "p"), debian, "true")
    identity = vgpurun.engine.containers.get("one").id
    for arguments, exit_code, words in (
        (("one",), 1, "name two or more"),
        (("one", identity[:12]), 1, "one is named twice"),
        (("one", "one\nother"), 1, "vgpurun: "),
        (("one", "bare"), 125, "container bare is not profiled; start it by `vgpurun run --profile DIR`"),
        (("one", "idle"), 125, "did the program use the GPU?"),
    ):
        refused = vgpurun("advise", *arguments)
        assert (refused.exit_code, refused.stdout) == (exit_code, "") and words in refused.stderr, refused
        assert refused.stderr.count("\n") == 1
    shutil.rmtree(tmp_path / "p")
    assert "No such file or directory" in vgpurun("advise", "one", "idle").stderr
