"""Says whether a process is stopped, by a signal or in a frozen cgroup, so that nothing in it answers."""

from contextlib import suppress
from pathlib import Path

from vgpurun.host.freezer import paths_of

CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped or frozen. Raises nothing."""
    return _has_signal(pid) or _is_frozen(pid)


def _has_signal(pid: int) -> bool:
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    return False


def _is_frozen(pid: int) -> bool:
    """Ask the cgroups of a process, of version 2 or 1."""
    with suppress(OSError):
        paths = paths_of(pid, _PROC)
        for controller, file, word in (("", "cgroup.events", "frozen 1"), ("freezer", "freezer.state", "FROZEN")):
            with suppress(OSError, KeyError):
                if word in (CGROUPS / controller / paths[controller].lstrip("/") / file).read_text():
                    return True
    return False
