"""The process that keeps a group's server: it starts it with the first member, and ends it after the last.

It says `ready` on its standard output, or what is wrong. A child of it waits for its end, and then ends what it kept:
so a keeper that is killed leaves programs with an error, and not off the GPU for ever.
"""

import ctypes
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vgpurun.errors import TogetherError
from vgpurun.host import gpus
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota
from vgpurun.together.beside import Beside
from vgpurun.together.cap import Cap
from vgpurun.together.group import LOST, MEMBERS, Group, is_member, is_mounted, left_in, remove
from vgpurun.together.server import Server, kill
from vgpurun.together.slices import at_work, slice_us, whole_of
from vgpurun.util.locking import open_lock
from vgpurun.util.process_identity import ProcessIdentity

_LOOK_S = 0.5
_PR_SET_CHILD_SUBREAPER = 36
_FAULT = (
    "a fault of one of its programs, or the end of one in the middle of its GPU work, has ended that of all of them; "
    "they have to be started again"
)
_SILENT = (
    "the MPS daemon could not be asked which programs it has, as where one of them has removed its pipe, and so whose "
    "time is limited; it is started again, and their GPU work has ended"
)
_MOST_INCIDENTS = 20
_LEAST_LIFE_S = 5.0  # of a daemon; shorter ones are tried so often in a row:
_MOST_SHORT_LIVES = 3
_MOST_SILENT_LOOKS = 3  # in a row: a host that stands still makes no daemon silent


class Keeper:
    """What it knows of its group."""

    def __init__(self, group: Group, program: Path, uuids: Sequence[str], libcuda: str) -> None:
        """Start the server. Raises TogetherError."""
        self._group = group
        self._program, self._uuids = program, uuids
        self._server = self._start()
        self._started_s, self._short_lives = time.monotonic(), 0
        self._libcuda = libcuda
        self._beside: Beside | None = None
        self._own_pids: dict[int, bool] = {}
        self._cap = Cap(
            libcuda,
            lambda client: is_member(Path(f"/proc/{client.pid}"), group),
            self._away_s,
            are_several=len(uuids) > 1,
        )
        self._incidents: list[dict[str, object]] = []
        if before := group.record():  # of a keeper whose members are there still
            self._incidents = list(before.get("incidents") or ())
            self._note(LOST)
        self._serving: ProcessIdentity | None = None
        self._troubles = ["", "", ""]
        self._own = Quota()
        self._said: dict[str, object] = {}
        self._silent_looks = 0
        self._members = open_lock(group.folder / MEMBERS)
        self.write()

    def _start(self) -> Server:
        return Server(self._group, self._program, self._uuids, os.environ)

    def run(self) -> None:
        """Keep the server until nobody needs it any more. Raises TogetherError where it cannot be started again."""
        while not self._is_unused():
            time.sleep(_LOOK_S)
            self._look()

    def end(self) -> None:
        """End it, and leave nothing."""
        self._cap.end()
        if self._beside:
            self._beside.close()
            self._beside = None
        self._server.end()

    def write(self) -> None:
        """Write down what others may want to know, where that has changed."""
        server = self._serving
        said: dict[str, object] = {
            "server": server.pid if server else None,
            "incidents": self._incidents,
        }
        if said != self._said:
            with suppress(OSError):  # once the disk has room again
                self._group.write_record(said)
                self._said = said

    def _is_unused(self) -> bool:
        """Whether no member is left; then none comes before the folder is gone."""
        try:
            fcntl.flock(self._members, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._cap.clients and not is_mounted(self._group.pipes):  # one may have closed what it inherited
            return True
        fcntl.flock(self._members, fcntl.LOCK_UN)
        return False

    def _look(self) -> None:
        if not self._server.is_alive():
            self._start_again("the MPS daemon has ended, and all that its server did with it; it is started again")
        serving = self._server.serving()
        clients = self._server.clients(serving)
        self._silent_looks = self._silent_looks + 1 if clients is None else 0
        if self._silent_looks > _MOST_SILENT_LOOKS:
            self._start_again(_SILENT)
            serving, clients = None, []
        if clients is not None:
            self._cap.clients = clients
        if serving and self._server.has_failed(serving):
            serving.signal(signal.SIGKILL)  # the next client gets another at once
            self._note(_FAULT)
            serving = self._serving = None
        if self._serving not in (None, serving):
            self._note("the MPS server has ended, and with it the GPU work of all its programs")
        self._serving = serving
        self._own_pids = {}
        self._follow_limits()
        self._tell_troubles()
        self.write()

    def _start_again(self, why: str) -> None:
        """Raises TogetherError."""
        self._note(why)
        self._short_lives = self._short_lives + 1 if time.monotonic() - self._started_s < _LEAST_LIFE_S else 0
        if self._short_lives > _MOST_SHORT_LIVES:
            raise TogetherError("the MPS daemon ends again and again")
        self._server.end()
        self._server = self._start()
        self._started_s, self._silent_looks = time.monotonic(), 0

    def _follow_limits(self) -> None:
        """Have the cap hold the group's limits as they are now; the last ones where they cannot be read."""
        if folder := self._group.slice_folder:
            with suppress(OSError):
                if limits := limits_file.read_limits(folder / "etc" / "limits"):
                    self._own = whole_of(quota for _, quota in limits)
        if self._cap.clients:
            members, others = at_work(folder, self._uuids)
            own = self._own if folder else whole_of(members)
            self._cap.slice_us = slice_us(own, others)
        self._cap.percent = self._own.sm_percent

    def _away_s(self) -> float:
        """Return for how long the group was off the GPUs since the last time, for the cap."""
        if self._beside is None:
            self._beside = Beside(self._libcuda, self._uuids, self._is_own)
        return self._beside.away_s()

    def _is_own(self, pid: int) -> bool:
        """Whether a process is of the group: asked for each record, and looked up once between two looks."""
        if pid not in self._own_pids:
            self._own_pids[pid] = is_member(Path(f"/proc/{pid}"), self._group)
        return self._own_pids[pid]

    def _tell_troubles(self) -> None:
        troubles = [self._cap.trouble, self._cap.slice_trouble, self._beside.trouble if self._beside else ""]
        words = (
            ("the time of all together is not limited", "their time is limited again"),
            ("beside others they have the driver's own time slice", "their time slice is their own again"),
            ("they pay for the time in which others had the GPU", "they pay for their own time again"),
        )
        for trouble, before, (bad, good) in zip(troubles, self._troubles, words, strict=True):
            if trouble != before:
                self._note(f"{bad}: {trouble}" if trouble else good)
        self._troubles = troubles

    def _note(self, what: str) -> None:
        self._incidents = [*self._incidents, {"at_s": time.time(), "what": what}][-_MOST_INCIDENTS:]


def _guard_against_a_kill(group: Group) -> Callable[[], None]:
    """Fork a process that waits for the end of this one; return what ends it before."""
    mine, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(its)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(1)  # whoever waits for `ready` waits for this process alone
        os.read(mine, 1)
        kill(group.pipes, time.clock_gettime(time.CLOCK_BOOTTIME))  # a next keeper may start its own meanwhile
        os._exit(0)
    os.close(mine)

    def end() -> None:
        os.close(its)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)

    return end


def _end(number: int, frame: object) -> None:
    del number, frame
    raise SystemExit(0)


def main(named: str) -> int:
    """Keep the server of the group that a JSON object names; return the exit code."""
    if os.fork():
        os._exit(0)  # what ends a launch with all that has come of it does not end what others need
    given: dict[str, Any] = json.loads(named)
    group = Group(given["key"], Path(given["slice"]) if given["slice"] else None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launch may have blocked some
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if (libcuda := Path(given["libcuda"])).is_absolute():  # the simulated one, which has its NVML beside it
        gpus.use_library(libcuda.with_name("libnvidia-ml.so.1"))
    kill(group.pipes)  # what a keeper has left that was killed
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # a server outlives the daemon that has started it
    release = _guard_against_a_kill(group)
    try:
        with group.kept():  # it ends before the members' lock, as their next launch asks in the other order
            try:
                group.hold_slice()
                _keep(Keeper(group, Path(given["program"]), given["uuids"], given["libcuda"]), group.folder)
            finally:
                release()
    except TogetherError as error:
        print(error, flush=True)
        return 1
    return 0


def _keep(keeper: Keeper, folder: Path) -> None:
    """Raises TogetherError."""
    try:
        with suppress(BrokenPipeError):  # the launch was killed: so it ends as after any other
            print("ready", flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        keeper.run()
        keeper.end()
        with suppress(OSError):
            remove(left_in(folder))
    finally:
        keeper.end()
