"""An MPS daemon is found, and limited programs are kept out of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpurun.errors import OptionError
from vgpurun.host import mps
from vgpurun.options import ContainerOptions, Volume


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[int]:
    """A process that is called as the daemon is."""
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "60"])
    while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # being executed
        time.sleep(0.01)
    yield process.pid
    process.kill()
    process.wait()


def test_a_daemon_is_found_by_its_name(daemon: int) -> None:
    assert mps.find_daemon() == daemon


@pytest.mark.parametrize("is_keeper", [True, False], ids=["locks a group's folder", "is only called so"])
def test_a_daemon_that_a_keeper_of_ours_has_started_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_keeper: bool
) -> None:
    """Anybody may write the keeper's name into his command line."""
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    (tmp_path / "together" / "7").mkdir(parents=True)
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    keeper = (
        "import fcntl, os, subprocess, sys; fcntl.flock(os.open(sys.argv[2], os.O_RDONLY), fcntl.LOCK_SH); "
        "print(subprocess.Popen([sys.argv[1], '60']).pid, flush=True); input()  # vgpurun.together.keeper"
    )
    locked = tmp_path / "together" / "7" if is_keeper else tmp_path / "together"
    command = [sys.executable, "-c", keeper, program, locked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        try:
            while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(bytes(program)):  # being executed
                time.sleep(0.01)
            assert mps.find_daemon() == (None if is_keeper else pid)
        finally:
            os.kill(pid, signal.SIGKILL)
            process.kill()


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps", "sleep"])
def test_others_are_no_daemon(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "comm").write_text(f"{name[:15]}\n")
    (folder / "cmdline").write_bytes(f"/usr/bin/{name}".encode() + b"\0-d\0")
    assert mps.find_daemon(tmp_path) is None
    (folder / "cmdline").write_bytes(b"/usr/bin/nvidia-cuda-mps-control\0-d\0")
    (folder / "comm").write_text("nvidia-cuda-mps\n")
    assert mps.find_daemon(tmp_path) == 7


def test_a_process_of_the_host_is_kept_out() -> None:
    assert mps.keep_process_out({}, lambda: None) == {}
    assert mps.keep_process_out({}, lambda: 7) == {mps.ENV_PIPES: mps.NO_PIPES}
    assert mps.keep_process_out({mps.ENV_PIPES: "/elsewhere"}, lambda: 7) == {mps.ENV_PIPES: mps.NO_PIPES}
    assert not Path(mps.NO_PIPES).exists()


@pytest.mark.parametrize(
    ("source", "target", "environment"),
    [
        ("/tmp", "/tmp", {}),
        ("/tmp/nvidia-mps", "/tmp/nvidia-mps", {}),
        ("/run/mps", "/pipes", {mps.ENV_PIPES: "/pipes"}),
        ("/", "/host", {mps.ENV_PIPES: "/host/tmp/nvidia-mps"}),
    ],
)
def test_a_container_that_reaches_the_daemon_is_refused(source: str, target: str, environment: dict[str, str]) -> None:
    options = ContainerOptions("image", volumes=(Volume(source, target),))
    with pytest.raises(OptionError, match=r"process 7.*no limit holds"):
        mps.refuse_in_container(options, environment, lambda: 7)
    mps.refuse_in_container(options, environment, lambda: None)


def test_a_container_without_the_pipes_is_let_in() -> None:
    for volumes in ((), (Volume("/data", "/data"),), (Volume("name", "/tmp"),)):
        mps.refuse_in_container(ContainerOptions("image", volumes=volumes), {}, lambda: 7)
