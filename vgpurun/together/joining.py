"""How a launch becomes a member of a group: what its programs are told, and a keeper that is there before them."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vgpurun.errors import TogetherError
from vgpurun.storage import state
from vgpurun.together.group import ENV_PIPES, ENV_SMS, LOST, Group
from vgpurun.together.server import has_failed, sweep
from vgpurun.util.locking import alone_in
from vgpurun.util.process_identity import identify

_PATIENCE_S, _FAULT_S, _POLL_S = 60.0, 5.0, 0.1
_KEEPER = (
    "import sys; sys.path.insert(0, sys.argv[1]); from vgpurun.together.keeper import main; sys.exit(main(sys.argv[2]))"
)


@dataclass(frozen=True)
class Membership:
    """What a launch needs: its group, how the server is started, and the part of the SMs that its programs have."""

    group: Group
    program: Path
    uuids: tuple[str, ...]
    sms_percent: int | None = None
    libcuda: str = "libcuda.so.1"

    def variables(self, pipes: str = "") -> dict[str, str]:
        """Return what CUDA is told in the environment. `pipes` is where a container has their folder."""
        part = {} if self.sms_percent is None else {ENV_SMS: str(self.sms_percent)}
        return {ENV_PIPES: pipes or str(self.group.pipes), **part}

    @contextmanager
    def joined(self) -> Iterator[int]:
        """Be a member, with a server that is ready; yield the open file by which others become one that inherit it.

        Raises TogetherError.
        """
        self.group.check_path()
        try:
            with self._member() as lock:
                yield lock
        except TogetherError:
            sweep()
            raise

    @contextmanager
    def _member(self) -> Iterator[int]:
        with self.group.joined() as lock:
            with alone_in(state.root_folder() / state.TOGETHER, _PATIENCE_S, TogetherError, state.make_readable):
                sweep()
                if not self.group.is_kept():
                    self._start_keeper()
            self._await_server()
            yield lock

    def _await_server(self) -> None:
        """Wait while the server has ended, or takes no client after a fault, until the keeper has seen that."""
        give_up_s = time.monotonic() + _FAULT_S
        while (server := self.group.record().get("server")) and time.monotonic() < give_up_s:
            if identify(int(server)) and not has_failed(self.program, self.group.pipes, int(server)):
                return
            time.sleep(_POLL_S)

    def _start_keeper(self) -> None:
        given = {
            "key": self.group.key,
            "slice": str(self.group.slice_folder or ""),
            "program": str(self.program),
            "uuids": self.uuids,
            "libcuda": self.libcuda,
        }
        try:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-c", _KEEPER, str(Path(__file__).parents[2]), json.dumps(given)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd="/",
                env={name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise TogetherError(f"{sys.executable} cannot be started: {error.strerror}") from None
        assert keeper.stdout is not None
        with keeper.stdout:
            said = _first_line(keeper.stdout.fileno(), _PATIENCE_S)
        if said is None:
            os.killpg(keeper.pid, signal.SIGKILL)
            said = f"its keeper has said nothing for {_PATIENCE_S:.0f} s, and was killed"
        keeper.wait()
        if said != "ready":
            raise TogetherError(f"no MPS server for {self.group.named}: {said or 'its keeper ended'}")

    def incidents_since(self, began_s: float) -> Sequence[str]:
        """Return what has befallen the server since a time of day, also just now."""
        self._await_server()
        found = self.group.record().get("incidents")
        incidents = [str(each["what"]) for each in found or () if float(each["at_s"]) >= began_s]
        return incidents if self.group.is_kept() else [*incidents, LOST]


def _first_line(file: int, patience_s: float) -> str | None:
    """Return the first line of a pipe, or what it has at its end; None where neither comes in time."""
    give_up_s, read = time.monotonic() + patience_s, b""
    while b"\n" not in read:
        if not select.select([file], [], [], max(0.0, give_up_s - time.monotonic()))[0]:
            return None
        if not (piece := os.read(file, select.PIPE_BUF)):
            break
        read += piece
    return read.decode(errors="replace").partition("\n")[0].strip()
