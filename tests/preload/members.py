"""Programs of a group that works at the same time, and what is left of the group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from governed import telling_its_slice

from cuda_driver import CudaError, Driver
from support.programs import text_of
from support.suspension import Host
from vgpurun.together import server

SIM = ("--driver", "sim")
MPS_ENABLED, SMS = 133, 16
TELLING = ("--", sys.executable, "-c", text_of(telling_its_slice))
BESIDE = ("local", *SIM, "--gpus", "device=0", "--mem", "200m")


def member() -> None:
    """Say what it sees, and then answer each line: a number of MiB is allocated, `work` waits for a kernel."""
    d = Driver()
    try:
        d.start()
    except CudaError as error:
        print(json.dumps(error.name), flush=True)
        return
    print(json.dumps([d.device_attribute(MPS_ENABLED), d.device_attribute(SMS)]), flush=True)
    kernel = d.kernel("work")
    for line in sys.stdin:
        said = "ok"
        try:
            if line.strip().isdecimal():
                d.mem_alloc(int(line) << 20)
            else:
                d.launch(kernel)
                d.synchronize()
        except CudaError as error:
            said = error.name
        print(json.dumps(said), flush=True)


@contextmanager
def host_in_a_short_folder() -> Iterator[Host]:
    """Make a host in a folder whose path leaves room for a socket's."""
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder:
        made = Host(Path(folder))
        yield made
        made.end()


class Member:
    """A program of a group, started by these words of vgpurun. `said` is what it sees first."""

    def __init__(self, host: Host, *words: str, **variables: str) -> None:
        command = ("--", sys.executable, "-u", "-c", text_of(member))
        self.process = host.start(*words, *command, **variables)
        self.said = self.read()

    def read(self) -> Any:
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, question: object = "work") -> Any:
        print(question, file=self.process.stdin, flush=True)
        return self.read()

    def end(self) -> tuple[int, str]:
        """Let it end, and return its exit code and what was said on standard error."""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said

    def kill(self) -> None:
        """Kill it with what has started it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in [*map(int, children), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def telling(host: Host, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that works all the time, and tells its time slice."""
    process = host.start(*words, *TELLING, is_group=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def one_group(host: Host) -> tuple[Path, Path]:
    """The folders of the only group."""
    (folder,) = (each for each in (host.folder / "state" / "together").iterdir() if each.is_dir())
    return folder, folder / "pipe"


def await_end(group: Path, pipes: Path) -> None:
    """Wait until nothing is left of a group."""
    give_up_s = time.monotonic() + 20
    while group.exists() or server.processes(pipes):
        assert time.monotonic() < give_up_s, (list(group.rglob("*")), server.processes(pipes))
        time.sleep(0.05)
