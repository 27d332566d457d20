"""The guard's actions on containers and processes, each by its verb; to do one again changes nothing."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import GuardError
from vgpurun.guard.daemon import Hand
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.inventory.guarded import FREEZE, HOLD, KILL, RELEASE, THAW, WARN, Action
from vgpurun.util.kernel_text import read_lines
from vgpurun.util.process_identity import ProcessIdentity, boot_id
from vgpurun.util.users import name_of


def _cgroup(action: Action) -> Cgroup | None:
    """Return the container's cgroup, or None where that start of it has ended: another one is another's."""
    cgroup = Cgroup(Path(action.cgroup), action.is_unified)
    return cgroup if run_of(cgroup) == action.run else None


def freeze(action: Action) -> None:
    """Freeze a container. Raises CgroupError."""
    if cgroup := _cgroup(action):
        cgroup.freeze()


def thaw(action: Action) -> None:
    """Let a container go on. Raises CgroupError."""
    if cgroup := _cgroup(action):
        cgroup.thaw()


def kill(action: Action) -> None:
    """End a container, or a process outside. Raises CgroupError and GuardError."""
    if not action.container:
        _kill_process(action)
    elif cgroup := _cgroup(action):
        with suppress(FileNotFoundError):
            cgroup.kill()


def _kill_process(action: Action) -> None:
    """End this very process. Raises GuardError, also where it is not the user's any more whom it was judged as."""
    try:
        with ProcessIdentity(action.pid, action.started_ticks, boot_id()).opened() as file:
            if file is None:
                return
            user = name_of(Path(f"/proc/{action.pid}").stat().st_uid)
            if user != action.user:
                raise GuardError(f"it is not user {action.user}'s any more, but {user}'s")
            signal.pidfd_send_signal(file, signal.SIGKILL)
    except PermissionError as error:
        raise GuardError(f"it cannot be ended: {error.strerror}") from None
    except OSError:
        return  # it has ended


def nothing(action: Action) -> None:
    """Do nothing: saying it is all, or a duty does it bit by bit."""
    del action


HANDS: Mapping[str, Hand] = {
    WARN: nothing, FREEZE: freeze, THAW: thaw, KILL: kill, HOLD: nothing, RELEASE: thaw,
}  # fmt: skip


def let_dying_go(cgroup: Cgroup) -> None:
    """Let those processes of a frozen container of v1 end that somebody has sent SIGKILL; the others stay frozen.

    On v1 it takes effect only in a process that runs. So each of these is moved out: a tenant may have one killed by a
    timer, for which the container must not go on. Raises CgroupError.
    """
    if cgroup.is_unified or not cgroup.is_frozen():
        return
    for pid in cgroup.pids():
        if _has_pending_kill(pid):
            cgroup.move_out(pid)


def is_ending(cgroup: Cgroup) -> bool:
    """Whether a container's processes have ended, or are about to: its cgroup may stay for a while."""
    return all(_has_pending_kill(pid) for pid in cgroup.pids())


def _has_pending_kill(pid: int) -> bool:
    with suppress(OSError, ValueError):
        for line in read_lines(Path(f"/proc/{pid}/status")):
            name, _, mask = line.partition(":")
            if name in ("SigPnd", "ShdPnd") and int(mask, 16) >> (signal.SIGKILL - 1) & 1:
                return True
    return False
