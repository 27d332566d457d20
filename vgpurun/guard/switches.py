"""Processes that the guard has taken off their GPUs, and who puts them back if it cannot.

A process of its own does it, the keeper: when the guard is killed, it puts them back. When the keeper is killed, the
guard starts another one, which does. What may be off is written down before it is, so that the next guard puts it back
where both were killed. A process that ends takes its channels along.
"""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import vgpurun
from vgpurun.errors import ChannelError
from vgpurun.guard.switch_keeper import KEEP, OFF, ON, READY, SLICE
from vgpurun.util.process_identity import ProcessIdentity

_START = "import sys; sys.path.insert(0, sys.argv[1]); from vgpurun.guard.switch_keeper import main; main(sys.argv[2])"
SWITCHES = "switches"  # the name of their memory
_ANSWER_TAKES_S = 5.0
_MOST_AT_ONCE = 64  # questions; their answers have to fit into a pipe
_PIECE_BYTES = 4096
_REMEMBERED, _SLICED = "off", "sliced"


class Switches:
    """`memory` is kept on the disk by `keep`, which may raise OSError. `note` hears of troubles, by source."""

    def __init__(
        self,
        memory: dict[str, Any],
        keep: Callable[[], None],
        note: Callable[[str, str], None],
        libcuda: str = "libcuda.so.1",
    ) -> None:
        self._memory = memory
        self._keep = keep
        self.note = note
        self._libcuda = libcuda
        self._keeper: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []  # those that may not have ended yet
        self._owed: set[ProcessIdentity] = set()  # what is to be put back as soon as it can be
        self.off = {ProcessIdentity(*each) for each in memory.get(_REMEMBERED, [])}
        # Those whose time slice may be another than the driver's own, and what it is; 0 where a guard before set it.
        self._slices_us = {ProcessIdentity(*each): 0 for each in memory.get(_SLICED, [])}

    def take_off(self, processes: Iterable[ProcessIdentity]) -> set[ProcessIdentity]:
        """Take processes off their GPUs, with what they have made there since the last time.

        Return those that are off, or have ended; none is that cannot be written down.
        """
        wanted = set(processes)
        self._owed -= wanted
        if not wanted <= self.off:
            self._remember_off(self.off | wanted)
        return self._done(OFF, wanted & self.off)

    def let_run(self, processes: Iterable[ProcessIdentity]) -> None:
        """Let processes run that are taken off again soon: until put_back() they may be off, as is written down."""
        self._done(ON, self.off & set(processes))

    def put_back(self, processes: Iterable[ProcessIdentity]) -> None:
        """Put back those of them that are off, and what could not be put back before."""
        self._owed |= self.off & set(processes)
        back = self._done(ON, self._owed)
        if back:
            self._remember_off(self.off - back)
        self._owed &= self.off

    def set_slices(self, slices_us: Mapping[ProcessIdentity, int]) -> None:
        """Give these processes time slices, also for what they have made since, and all others the driver's own."""
        wanted = dict(slices_us)
        others = self._slices_us.keys() - wanted.keys()
        if not wanted.keys() <= self._slices_us.keys() and not self._remember(_SLICED, {*wanted, *self._slices_us}):
            wanted = {}
        self._slices_us |= wanted
        back = {process for process in others if self._done(SLICE, [process], 0)}
        for process, slice_us in wanted.items():
            self._done(SLICE, [process], slice_us)
        if back and self._remember(_SLICED, self._slices_us.keys() - back):
            self._slices_us = {each: slice_us for each, slice_us in self._slices_us.items() if each not in back}

    def close(self) -> None:
        """Put all back, and end the keeper."""
        self.put_back(self.off)
        self.set_slices({})
        self._let_keeper_go()

    def _remember_off(self, off: set[ProcessIdentity]) -> None:
        """Write down what may be off from now on; where that fails, it stays what it was."""
        if self._remember(_REMEMBERED, off):
            self.off = off

    def _remember(self, name: str, processes: Iterable[ProcessIdentity]) -> bool:
        before = self._memory.get(name, [])
        self._memory[name] = sorted(processes)
        try:
            self._keep()
        except OSError as error:
            self._memory[name] = before
            self.note(SWITCHES, f"nothing more is taken off its GPU, since that cannot be written: {error.strerror}")
            return False
        self.note(SWITCHES, "")
        return True

    def _done(self, verb: str, processes: Iterable[ProcessIdentity], *more: int) -> set[ProcessIdentity]:
        """Return those for which it is done. What fails for one is done for the others, unless no keeper answers."""
        wanted, done = list(processes), set()
        try:
            for first in range(0, len(wanted), _MOST_AT_ONCE):
                some = wanted[first : first + _MOST_AT_ONCE]
                lines = [" ".join(map(str, (verb, each.pid, each.started_ticks, *more))) for each in some]
                answers = zip(some, self._ask_twice(lines), strict=True)
                done |= {each for each, answer in answers if self._is_done(each, answer)}
                self.note("keeper", "")
        except (ChannelError, OSError) as error:
            self.note("keeper", str(error))
        return done

    def _is_done(self, process: ProcessIdentity, answer: str) -> bool:
        """Whether it is done, as nothing is to what has ended."""
        trouble = answer[2:] if answer.startswith("!") else ""
        is_failed = bool(trouble) and process.is_alive()
        self.note(f"channels of {process.pid}", trouble if is_failed else "")
        return not is_failed

    def _ask_twice(self, lines: Sequence[str]) -> list[str]:
        """Ask a second keeper where the first has ended. Raises ChannelError where neither answers, and OSError."""
        try:
            return self._ask(lines)
        except (ChannelError, OSError):
            return self._ask(lines)

    def _ask(self, lines: Sequence[str]) -> list[str]:
        """Ask all of it at once: a question alone costs both processes more than what is done about it.

        Raises ChannelError where the keeper does not answer, and OSError; then it is killed.
        """
        try:
            if self._keeper is None:
                self._start()
            return self._answers(lines)
        except (ChannelError, OSError):
            self._kill_keeper()
            raise

    def _start(self) -> None:
        """Start a keeper, and tell it of all that may be off. Raises ChannelError, and OSError."""
        command = [sys.executable, "-I", "-c", _START, str(Path(vgpurun.__file__).parents[1]), self._libcuda]
        self._killed = [each for each in self._killed if each.poll() is None]
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        (greeting,) = self._read(1)
        if greeting != READY:
            raise ChannelError(greeting.removeprefix("! "))
        for each in self.off:
            self._answers([f"{KEEP} {each.pid} {each.started_ticks}"])
        for each, slice_us in self._slices_us.items():
            self._answers([f"{SLICE} {each.pid} {each.started_ticks} {slice_us}"])

    def _answers(self, lines: Sequence[str]) -> list[str]:
        """Return the keeper's answers. Raises ChannelError, and OSError."""
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        self._keeper.stdin.write("".join(f"{line}\n" for line in lines).encode())
        return self._read(len(lines))

    def _read(self, count: int) -> list[str]:
        """Return the keeper's next lines. Raises ChannelError, and OSError."""
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        answers = b""
        while answers.count(b"\n") < count:
            if not select.select([self._keeper.stdout], [], [], _ANSWER_TAKES_S)[0]:
                raise ChannelError("the driver does not answer")
            if not (piece := os.read(self._keeper.stdout.fileno(), _PIECE_BYTES)):
                raise ChannelError("the process that switches channels has ended")
            answers += piece
        return answers.decode(errors="replace").split("\n")[:count]

    def _let_keeper_go(self) -> None:
        """Have it put back what is off, and end."""
        if self._keeper is None:
            return
        try:
            self._keeper.communicate(timeout=_ANSWER_TAKES_S)
            self._keeper = None
        except subprocess.TimeoutExpired:
            self._kill_keeper()

    def _kill_keeper(self) -> None:
        """End it without waiting: it may stand in a call to the driver, and is reaped when the next one is started."""
        if self._keeper is None:
            return
        self._keeper.kill()
        for each in (self._keeper.stdin, self._keeper.stdout):
            assert each is not None
            each.close()
        self._killed.append(self._keeper)
        self._keeper = None
