"""Processes that the guard has taken off their GPUs, and who puts them back if it cannot.

A process of its own does it, the keeper: when the guard is killed, it puts them back. When the keeper is killed, the
guard starts another one, which does. What may be off is written down before it is, so that the next guard puts it back
where both were killed. A process that ends takes its channels along.
"""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import vgpurun
from vgpurun.errors import ChannelError
from vgpurun.guard.switch_keeper import KEEP, OFF, ON, READY
from vgpurun.util.process_identity import ProcessIdentity

_START = "import sys; sys.path.insert(0, sys.argv[1]); from vgpurun.guard.switch_keeper import main; main(sys.argv[2])"
SWITCHES = "switches"  # the name of their memory
_ANSWER_TAKES_S = 5.0
_MOST_BYTES = 4096  # of an answer
_REMEMBERED = "off"


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

    def take_off(self, processes: Iterable[ProcessIdentity]) -> bool:
        """Take processes off their GPUs, with what they have made there since the last time.

        Return whether all are off that live; none is that cannot be written down.
        """
        wanted = set(processes)
        self._owed -= wanted
        if not wanted <= self.off:
            self._remember(self.off | wanted)
        return self._done(OFF, wanted & self.off) == wanted

    def let_run(self, processes: Iterable[ProcessIdentity]) -> bool:
        """Let processes run that are taken off again soon: until put_back() they may be off, as is written down.

        Return whether all do that live.
        """
        wanted = self.off & set(processes)
        return self._done(ON, wanted) == wanted

    def put_back(self, processes: Iterable[ProcessIdentity]) -> None:
        """Put back those of them that are off, and what could not be put back before."""
        self._owed |= self.off & set(processes)
        back = self._done(ON, self._owed)
        if back:
            self._remember(self.off - back)
        self._owed &= self.off

    def close(self) -> None:
        """Put all back, and end the keeper."""
        self.put_back(self.off)
        self._let_keeper_go()

    def _remember(self, off: set[ProcessIdentity]) -> None:
        """Write down what may be off from now on; where that fails, it stays what it was."""
        before = self._memory.get(_REMEMBERED, [])
        self._memory[_REMEMBERED] = sorted(off)
        try:
            self._keep()
        except OSError as error:
            self._memory[_REMEMBERED] = before
            self.note(SWITCHES, f"nothing more is taken off its GPU, since that cannot be written: {error.strerror}")
            return
        self.off = off
        self.note(SWITCHES, "")

    def _done(self, verb: str, processes: Iterable[ProcessIdentity]) -> set[ProcessIdentity]:
        """Return those for which it is done. What fails for one is done for the others, unless no keeper answers."""
        done = set()
        try:
            for each in processes:
                if self._is_done(verb, each):
                    done.add(each)
                self.note("keeper", "")
        except (ChannelError, OSError) as error:
            self.note("keeper", str(error))
        return done

    def _is_done(self, verb: str, process: ProcessIdentity) -> bool:
        """Whether it is done, as nothing is to what has ended. Raises ChannelError where none answers, and OSError."""
        answer = self._ask_twice(verb, process)
        trouble = answer[2:] if answer.startswith("!") else ""
        is_failed = bool(trouble) and process.is_alive()
        self.note(f"channels of {process.pid}", trouble if is_failed else "")
        return not is_failed

    def _ask_twice(self, verb: str, process: ProcessIdentity) -> str:
        """Ask a second keeper where the first has ended. Raises ChannelError where neither answers, and OSError."""
        try:
            return self._ask(verb, process)
        except (ChannelError, OSError):
            return self._ask(verb, process)

    def _ask(self, verb: str, process: ProcessIdentity) -> str:
        """Raises ChannelError where the keeper does not answer, and OSError; then it is killed."""
        try:
            if self._keeper is None:
                self._start()
            return self._answer(f"{verb} {process.pid} {process.started_ticks}\n")
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
        greeting = self._answer("")
        if greeting != READY:
            raise ChannelError(greeting.removeprefix("! "))
        for each in self.off:
            self._answer(f"{KEEP} {each.pid} {each.started_ticks}\n")

    def _answer(self, line: str) -> str:
        """Return the keeper's answer, which it writes at once. Raises ChannelError, and OSError."""
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(line.encode())
        if not select.select([self._keeper.stdout], [], [], _ANSWER_TAKES_S)[0]:
            raise ChannelError("the driver does not answer")
        if not (answer := os.read(self._keeper.stdout.fileno(), _MOST_BYTES)):
            raise ChannelError("the process that switches channels has ended")
        return answer.decode(errors="replace").strip()

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
