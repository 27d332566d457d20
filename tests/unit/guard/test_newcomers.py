"""When the guard looks at once: at a new process that has opened the device, until it is known or for a moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vgpurun.guard import newcomers
from vgpurun.guard.newcomers import Newcomers

OPENS = "import sys; input(); file = open(sys.argv[1]); print(flush=True); input()"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device's file. All processes are taken for those of containers."""
    monkeypatch.setattr(newcomers, "GATHERED", "/")
    (tmp_path / "nvidiactl").touch()
    return tmp_path / "nvidiactl"


def test_one_that_opens_the_device(device: Path) -> None:
    watching = Newcomers(lambda: 0.0)
    command = [sys.executable, "-c", OPENS, str(device)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert not watching.are_expected(())
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert watching.are_expected(()) and watching.are_expected({os.getpid()})
        assert not watching.are_expected({process.pid})
        assert not watching.are_expected(()), "it is known, and no news any more"
        process.kill()
    watching.close()


def test_one_that_never_holds_any_memory(device: Path) -> None:
    now_s = 0.0
    watching = Newcomers(lambda: now_s)
    with device.open() as file, subprocess.Popen(["sleep", "60"], stdin=file) as process:
        assert watching.are_expected(())
        now_s = 4.0
        assert not watching.are_expected(())
        process.kill()
    watching.close()


def test_one_in_no_container(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "GATHERED", "/vgpurun-")
    watching = Newcomers(lambda: 0.0)
    with device.open() as file, subprocess.Popen(["sleep", "60"], stdin=file) as process:
        assert not watching.are_expected(())
        process.kill()
    watching.close()
