"""The documentation shows what happens. With RECORD=1 the pages are written anew instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import recorded
from cli import Cli
from support import CHECKOUT, is_set

PAGES = [path for path in sorted((CHECKOUT / "docs").glob("*.md")) if recorded.recordings(path.read_text())]
IMAGE, STAND_IN = "pytorch/pytorch", "vgpurun-test/py"  # the same length, so that columns stay


@pytest.fixture
def stand_in(vgpurun: Cli, debian: str) -> Iterator[str]:
    """The tests' own image under the name that stands for the pages' one."""
    vgpurun.engine.images.get(debian).tag(STAND_IN)
    yield STAND_IN
    vgpurun.remove_containers()
    vgpurun.engine.images.remove(STAND_IN, force=True)


@pytest.fixture
def session(vgpurun: Cli, stand_in: str, tmp_path: Path) -> Callable[[str], str]:
    """A shell in which `vgpurun` is this checkout's, on the simulated GPU; paths are shown as on a user's host."""
    program = tmp_path / "bin" / "vgpurun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vgpurun "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{vgpurun.environment['PATH']}"
    run = recorded.shell({**vgpurun.environment, "PATH": path, "VGPURUN_DRIVER": "sim"}, CHECKOUT)
    shown = {
        stand_in: IMAGE,
        str(CHECKOUT): "/opt/vgpurun",
        str(vgpurun.state_dir): "/var/lib/vgpurun",
        vgpurun.environment["DOCKER_HOST"]: "unix:///var/run/docker.sock",
    }

    def play(command: str) -> str:
        output = run(command.replace(IMAGE, stand_in))
        for found, instead in shown.items():
            output = output.replace(found, instead)
        return output

    return play


def test_there_are_recordings() -> None:
    assert len(PAGES) >= 4
    assert all(recorded.commands(each) for page in PAGES for each in recorded.recordings(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_happens(page: Path, session: Callable[[str], str]) -> None:
    text = page.read_text()
    now = recorded.replayed(text, lambda recording: recorded.play(recording, session))
    if is_set("RECORD"):
        page.write_text(now)
        return
    for shown, found in zip(recorded.recordings(text), recorded.recordings(now), strict=True):
        assert recorded.essence(found) == recorded.essence(shown), f"RECORD=1 pytest {os.path.relpath(__file__)}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("    ann  4s  10 / 50 %", "    ann   17s  9.5 / 50 %"),
        ("    ok  0123456789ab", "    ok  ba9876543210"),
    ],
)
def test_what_may_differ(one: str, other: str) -> None:
    assert recorded.essence(one) == recorded.essence(other)
    assert recorded.essence(one) != recorded.essence(one + " more")
    assert recorded.essence("    4 GiB") != recorded.essence("    3 GiB")
