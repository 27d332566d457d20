"""The guard's memory: written before an action is done, so that a guard that is killed loses and repeats none."""

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vgpurun.errors import GuardError
from vgpurun.guard.snapshot import Contained
from vgpurun.inventory import guarded
from vgpurun.inventory.guarded import STOPPING, Action, Done, Stopped
from vgpurun.storage.state import make_readable
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.locking import holder_of, lock_in_time, show_holder
from vgpurun.util.process_identity import boot_id, identify

_LOCK_MODE = 0o600
_MOST_RECORD_BYTES = 4 << 20  # of one file of actions, some ten thousand


def about(container: Contained, verb: str, cause: str, words: str, gpu: str = "") -> Action:
    """Return an action on a container."""
    around = [share.removeprefix("slice ") for share in container.around if share.startswith("slice ")]
    return Action(
        verb, cause, words, container.name, container.user, container.id, str(container.cgroup.folder),
        container.cgroup.is_unified, container.run, str(container.folder), gpu,
        slices=",".join(filter(None, [container.slice_name, *around])),
    )  # fmt: skip


class State:
    """The state of a guard that runs, on the disk. One guard at a time has it."""

    def __init__(self, say: Callable[[str], None], wall: Callable[[], float] = time.time) -> None:
        """Take the lock, and read what the guard before this one has left. Raises GuardError."""
        self._wall = wall
        self._folder = guarded.folder()
        try:
            make_readable(self._folder)
            self._lock = _open_lock(self._folder / guarded.LOCK)
        except OSError as error:
            raise GuardError(f"the guard's folder {self._folder} cannot be used: {error.strerror}") from None
        if not lock_in_time(self._lock, fcntl.LOCK_EX, 0):
            holder = show_holder(holder_of(self._lock))
            os.close(self._lock)
            raise GuardError(f"another guard runs on this host: {holder} holds {self._folder}/lock")
        self._say_who_runs()
        self.recorded: list[Action] = []  # what was done so far, where only the record of that is left
        self._read(say)

    def _say_who_runs(self) -> None:
        try:
            with atomic_file(self._folder / guarded.PROCESS) as half_made:
                half_made.write_text(json.dumps(identify(os.getpid())))
        except OSError as error:
            os.close(self._lock)
            raise GuardError(f"the guard's folder {self._folder} cannot be written: {error.strerror}") from None

    def _read(self, say: Callable[[str], None]) -> None:
        found: dict[str, Any] = {}
        try:
            found = guarded.read_state()
            self._take(found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            aside = self._folder / f"{guarded.STATE}.damaged"
            with suppress(OSError):
                (self._folder / guarded.STATE).replace(aside)
            say(f"warning: the guard's state was damaged ({error}): it is now {aside}, and what is recorded holds")
            self._take({})
            self._recall()

    def _take(self, found: dict[str, Any]) -> None:
        known = {each.id for each in guarded.actions()}
        self._next = max(int(found.get("next", 1)), max(known, default=0) + 1)
        self._counts = {str(key): int(count) for key, count in found.get("counts", {}).items()}
        self.stopped = guarded.stopped_in(found)
        self._duties = {str(name): dict(each) for name, each in found.get("duties", {}).items()}
        self.pending = {int(each["id"]): Action(**each["action"]) for each in found.get("pending", [])}
        self._known = known & self.pending.keys()  # recorded by a guard that was killed right after

    def _recall(self) -> None:
        """Take from the record what is stopped, and what the duties have done."""
        for done in guarded.actions():
            action = done.action
            self.recorded.append(action)
            key = f"{action.verb} {action.cause}"
            self._counts[key] = self._counts.get(key, 0) + 1
            self._set_stopped(action, done.at_s)

    def _set_stopped(self, action: Action, at_s: float) -> None:
        if action.container and action.verb in STOPPING:
            self.stopped[action.container] = Stopped(
                action.verb, action.cause, at_s, action.cgroup, action.is_unified, action.run, action.slices
            )
        elif action.verb in (guarded.THAW, guarded.RELEASE, guarded.KILL):
            self.stopped.pop(action.container, None)

    def close(self) -> None:
        """Let another guard run."""
        with suppress(OSError):
            (self._folder / guarded.PROCESS).unlink()
        os.close(self._lock)

    def memory_of(self, duty: str) -> dict[str, Any]:
        """Return what a duty remembers across restarts, to be changed in place; write() keeps it."""
        return self._duties.setdefault(duty, {})

    def begin(self, action: Action) -> int:
        """Write down that an action is about to be done; return its number. Raises OSError, and then it is not."""
        number, self._next = self._next, self._next + 1
        before = dict(self.stopped)
        self.pending[number] = action
        if action.verb in STOPPING:
            self._set_stopped(action, self._wall())
        try:
            self.write()
        except OSError:
            del self.pending[number]
            self.stopped.clear()
            self.stopped.update(before)
            raise
        return number

    def end(self, number: int, is_done: bool = True) -> Done | None:
        """Write down that it has been done, once; None where it was not done, or is in the record already.

        Raises OSError.
        """
        action = self.pending[number]
        done = None
        if is_done and number not in self._known:
            done = self._record(number, action)
            self._known.add(number)
        if is_done:
            key = f"{action.verb} {action.cause}"
            self._counts[key] = self._counts.get(key, 0) + 1
        if is_done and action.verb not in STOPPING:
            self._set_stopped(action, self._wall())
        elif not is_done and action.verb in STOPPING:
            self.stopped.pop(action.container, None)
        del self.pending[number]
        self.write()
        self._known.discard(number)
        return done

    def forget(self, container: str) -> None:
        """Forget that a container is stopped: it has ended, or somebody else let it go on. Raises OSError."""
        if self.stopped.pop(container, None):
            self.write()

    def _record(self, number: int, action: Action) -> Done:
        done = Done(number, self._wall(), action)
        path = self._folder / guarded.ACTIONS
        with suppress(FileNotFoundError):
            if path.stat().st_size > _MOST_RECORD_BYTES:
                path.replace(self._folder / guarded.OLDER_ACTIONS)
        _append(path, json.dumps({"id": done.id, "at_s": done.at_s, **asdict(action)}))
        return done

    def write(self) -> None:
        """Put all of it on the disk. Raises OSError."""
        content = {
            "boot_id": boot_id(),
            "next": self._next,
            "counts": self._counts,
            "stopped": {container: asdict(each) for container, each in self.stopped.items()},
            "pending": [{"id": number, "action": asdict(action)} for number, action in self.pending.items()],
            "duties": self._duties,
        }
        with atomic_file(self._folder / guarded.STATE) as half_made:
            half_made.write_text(json.dumps(content))


def _open_lock(path: Path) -> int:
    """Open the lock; one that others may open, who could hold it for ever, is replaced. Raises OSError."""
    with suppress(FileNotFoundError):
        if path.lstat().st_mode & ~stat.S_IFREG != _LOCK_MODE:
            path.unlink()
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, _LOCK_MODE)


def _append(path: Path, line: str) -> None:
    """Add a line; what a killed writer left of one ends before it."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        is_whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
        os.write(file, f"{'' if is_whole else chr(10)}{line}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
