"""Locks on a node's folders: one plugin of a kind, and one process at a time where something is changed.

During an update there are two plugins for a moment, and the new one waits for the old.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from vgpurun.errors import StateError
from vgpurun.kubernetes.probes import Pulse
from vgpurun.storage import state
from vgpurun.util.locking import alone_in, opened

_INTERVAL_S = 0.2
_PATIENCE_S = 10.0  # kubelet gives up the start of a container after 30 s, and claims after 45 s


def one_at_a_time(folder: Path) -> AbstractContextManager[None]:
    """Keep others out of a folder until this ends.

    Entering it raises StateError, also where it is not had in the time in which kubelet wants an answer.
    """
    return alone_in(folder, _PATIENCE_S, StateError, state.make_readable)


@contextmanager
def only_one(
    folder: Path, ends_within: Callable[[float], bool], pulse: Pulse, say: Callable[[str], None]
) -> Iterator[bool]:
    """Wait until no other process has `folder` in this way, and yield whether it is had until this ends.

    It is not where `ends_within`, which waits for so many seconds, says that this process is to end. The kernel lets go
    of the folder with its process. Raises StateError.
    """
    with opened(folder, StateError, state.make_readable, ".plugin") as lock:
        yield _is_had(lock, ends_within, pulse, say)


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
