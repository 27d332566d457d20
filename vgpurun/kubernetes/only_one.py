"""One plugin of a kind on a node: during an update there are two for a moment, and the new one waits for the old."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vgpurun.errors import StateError
from vgpurun.kubernetes.probes import Pulse
from vgpurun.limits import state

_INTERVAL_S = 0.2


@contextmanager
def only_one(
    folder: Path, ends_within: Callable[[float], bool], pulse: Pulse, say: Callable[[str], None]
) -> Iterator[bool]:
    """Wait until no other process has `folder` in this way, and yield whether it is had until this ends.

    It is not where `ends_within`, which waits for so many seconds, says that this process is to end. The kernel lets go
    of the folder with its process. Raises StateError.
    """
    try:
        state.make_readable(folder)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(f"cannot use {folder}: {error.strerror}") from None
    try:
        yield _is_had(lock, ends_within, pulse, say)
    finally:
        os.close(lock)


def _is_had(lock: int, ends_within: Callable[[float], bool], pulse: Pulse, say: Callable[[str], None]) -> bool:
    is_told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not is_told:
                say("another plugin of this kind runs on this node; this one waits for it to end")
            is_told = True
            pulse.beat(is_ready=False)
            if ends_within(_INTERVAL_S):
                return False
