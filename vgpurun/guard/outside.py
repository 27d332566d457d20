"""The duty that looks after programs on a GPU which vgpurun did not start, and that its library does not count."""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.guard.daemon import Actions, Duty
from vgpurun.guard.snapshot import Program, Snapshot
from vgpurun.guard.state import State
from vgpurun.inventory.guarded import Action
from vgpurun.limits.quota import show_size

OUTSIDE = "outside"


class Allowed(NamedTuple):
    """Users who may use GPUs outside vgpurun, by name, and programs, by their file's name, if that is root's."""

    users: Sequence[str]
    programs: Sequence[str]


class OutsideDuty(Duty):
    """Acts once on each process outside vgpurun that is not allowed. `policy` is off, warn or kill."""

    name = OUTSIDE

    def __init__(
        self,
        memory: dict[str, Any],
        state: State,
        policy: str,
        grace_s: float,
        allowed: Allowed,
        program_of: Callable[[int], str] = lambda pid: program_of(pid),
    ) -> None:
        super().__init__(memory)
        self._policy = policy
        self._grace_s = grace_s
        self._allowed = allowed
        self._program_of = program_of
        self._since_s: dict[str, float] = {}
        self._acted: list[str] = memory.setdefault("acted", [])
        self._acted += [f"{each.pid} {each.started_ticks}" for each in state.recorded if each.cause == OUTSIDE]

    def look(self, snapshot: Snapshot) -> Actions:
        """Yield what is to be done about each such process."""
        if self._policy == "off":
            return
        keys = set()
        numbers = {gpu.uuid: gpu.number for gpu in snapshot.gpus}
        for uuid, held in snapshot.held.items():
            for pid, size in held.items():
                program = snapshot.programs[pid]
                if program.container:
                    continue
                keys.add(key := f"{pid} {program.started_ticks}")
                if program.container is None:
                    continue  # it may be outside all the same, and is no new cause when that is known
                if self._is_due(key, program, snapshot):
                    words = f"it holds {show_size(size)} on GPU {numbers.get(uuid, uuid)} outside vgpurun"
                    if program.foreign:
                        words += f", in container {program.foreign[:12]}"
                    self._acted.append(key)
                    is_done = yield Action(
                        self._policy, OUTSIDE, words, program.command, program.user, gpu=uuid, pid=pid,
                        started_ticks=program.started_ticks,
                    )  # fmt: skip
                    if not is_done:
                        self._acted.remove(key)
                    self.has_changed = True
        self._since_s = {key: at_s for key, at_s in self._since_s.items() if key in keys}
        if not snapshot.silent and (gone := [key for key in self._acted if key not in keys]):
            self._acted[:] = [key for key in self._acted if key not in gone]
            self.has_changed = True

    def _is_due(self, key: str, program: Program, snapshot: Snapshot) -> bool:
        if key in self._acted or self._is_allowed(program):
            return False
        due_s = self._since_s.setdefault(key, snapshot.now_s) + self._grace_s
        if snapshot.now_s < due_s:
            return False
        if snapshot.is_counted_elsewhere(program.pid):
            self._since_s[key] = snapshot.now_s  # it may replace itself by one past the library, and is asked again
            return False
        return not snapshot.is_ending(program.pid)  # asked last: it may have ended meanwhile, and so be counted no more

    def _is_allowed(self, program: Program) -> bool:
        """A container of somebody else's has users of its own, and its programs may have any name."""
        if program.foreign:
            return False
        return program.user in self._allowed.users or self._program_of(program.pid) in self._allowed.programs


def program_of(pid: int) -> str:
    """Return the name of a process's file, if that belongs to root: a process may give itself any other name.

    Users may mount such a file at any path of theirs, so it has to be at that path on the host.
    """
    with suppress(OSError):
        program = Path(f"/proc/{pid}/exe")
        status = program.stat()
        path = program.readlink()
        is_roots = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_roots and os.path.samestat(status, path.stat()):
            return path.name
    return ""
