"""The MPS server of a group: its control daemon, with a folder of its own, and what that starts.

The host's own daemon has another folder: it is neither asked nor ended.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import TogetherError
from vgpurun.host.mps import CONTROL
from vgpurun.storage import state
from vgpurun.together.group import (
    ENV_LOGS,
    ENV_PIPES,
    MEMBERS,
    PIPES,
    Group,
    folders,
    is_kept,
    left_in,
    make_private,
    remove,
)
from vgpurun.util.kernel_text import read_text
from vgpurun.util.locking import lock_in_time, open_lock
from vgpurun.util.process_identity import ProcessIdentity, identify, read_stat

_COMM = CONTROL[:15]  # of the daemon and of the server alike, as /proc has them
_START_S, _ASKED_S, _END_S, _POLL_S = 20.0, 10.0, 5.0, 0.02


class Server:
    """The control daemon, a child of this process."""

    def __init__(self, group: Group, program: Path, uuids: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises TogetherError. `environment` is what its programs would have."""
        self._group = group
        self._program = program
        self._environment = {
            **{name: text for name, text in environment.items() if not name.startswith("CUDA_")},
            ENV_PIPES: str(group.pipes),
            ENV_LOGS: str(group.logs),
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        }
        self._environment.pop("LD_PRELOAD", None)
        try:
            for folder in (group.pipes, group.logs):
                make_private(folder)
                remove(folder.iterdir())  # of a daemon that was killed; containers have the folder itself mounted
            self._process = subprocess.Popen(
                [program, "-f"], env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise TogetherError(f"{program} cannot be started: {error.strerror}") from None
        self._await()

    def _await(self) -> None:
        give_up_s = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                self.end()
                raise TogetherError(f"{self._program} does not begin its work: {self._last_line()}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        return (self._group.pipes / "control").exists() and self._ask("get_server_list") is not None

    def _last_line(self) -> str:
        lines = []
        with suppress(OSError):
            for log in sorted(self._group.logs.glob("*.log")):
                lines += log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it says nothing")

    def _ask(self, command: str) -> str | None:
        return ask(self._program, self._group.pipes, command)

    def is_alive(self) -> bool:
        """Whether the daemon has not ended."""
        return self._process.poll() is None

    def serving(self) -> ProcessIdentity | None:
        """Return the server, None where no client has asked for one yet."""
        for task in Path(f"/proc/{self._process.pid}/task").glob("*/children"):  # whichever thread has started it
            with suppress(OSError):
                if found := next(filter(None, map(identify, map(int, read_text(task).split()))), None):
                    return found
        return None

    def has_failed(self, server: ProcessIdentity) -> bool:
        """Whether a fault has ended all work on it."""
        return has_failed(self._program, self._group.pipes, server.pid)

    def clients(self, server: ProcessIdentity | None) -> list[ProcessIdentity] | None:
        """Return the programs that are clients of the server, as far as they are to be seen from here.

        None where the daemon does not answer.
        """
        said = self._ask(f"get_client_list {server.pid}" if server else "get_server_list")
        if said is None or server is None:
            return None if said is None else []
        pids = [int(each) for each in said.split() if each.isdecimal()]
        return [each for each in map(identify, pids) if each is not None]

    def end(self) -> None:
        """End it and its servers."""
        if self.is_alive():
            with suppress(OSError, subprocess.TimeoutExpired):
                self._ask("quit")
                self._process.wait(_END_S)
        kill(self._group.pipes)
        self._process.kill()
        self._process.wait()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # servers, whose daemon ended before them
                pass


def ask(program: Path, pipes: Path, command: str) -> str | None:
    """Return what the daemon with this folder of pipes answers, None where it does not."""
    environment = {**os.environ, ENV_PIPES: str(pipes)}
    environment.pop("LD_PRELOAD", None)
    try:
        done = subprocess.run(
            [program], input=f"{command}\n", env=environment, capture_output=True, text=True, cwd="/",
            timeout=_ASKED_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def has_failed(program: Path, pipes: Path, server: int) -> bool:
    """Whether a fault has ended all work on a server; then it takes no client until all that it has are gone."""
    return "FAULT" in (ask(program, pipes, f"get_server_status {server}") or "")


def processes(pipes: Path, proc: Path = Path("/proc")) -> list[ProcessIdentity]:
    """Return the daemons and servers of a group, by the folder of pipes that they were started with."""
    mark = os.fsencode(f"{ENV_PIPES}={pipes}")
    found = []
    for folder in (each for each in proc.iterdir() if each.name.isdecimal()):
        with suppress(OSError, ValueError):
            if read_text(folder / "comm").strip() != _COMM or read_stat(int(folder.name)).has_ended:
                continue
            if mark in (folder / "environ").read_bytes().split(b"\0") and (one := identify(int(folder.name))):
                found.append(one)
    return found


def kill(pipes: Path, until_s: float = float("inf")) -> None:
    """Kill what runs of a group's daemons and servers, started until then by the boot clock, and wait for its end."""
    until_ticks = until_s * os.sysconf("SC_CLK_TCK")
    give_up_s = time.monotonic() + _END_S
    while (
        left := [each for each in processes(pipes) if each.started_ticks <= until_ticks]
    ) and time.monotonic() < give_up_s:
        for each in left:
            with suppress(OSError):
                each.signal(signal.SIGKILL)
        time.sleep(_POLL_S)


def sweep(is_dry_run: bool = False) -> list[tuple[Path, int]]:
    """End what a keeper has left of this user's groups that was killed, and remove it.

    Returns the folders, with the bytes that each took on the disk.
    """
    removed = []
    for folder in folders():
        with suppress(OSError):
            lock = open_lock(folder / MEMBERS)
            try:
                if lock_in_time(lock, fcntl.LOCK_EX, 0) and not is_kept(folder) and (left := left_in(folder)):
                    removed.append((folder, state.size_bytes(folder)))
                    if not is_dry_run:
                        kill(folder / PIPES)
                        remove(left)
            finally:
                os.close(lock)
    return removed
