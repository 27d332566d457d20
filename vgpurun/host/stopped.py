"""Says whether a process is stopped, by a signal or in a frozen cgroup, so that nothing in it answers."""

from contextlib import suppress
from pathlib import Path

from vgpurun.util.kernel_text import read_lines

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
    for controllers, path in cgroups_of(pid):
        with suppress(OSError):
            if not controllers and "frozen 1" in (CGROUPS / path / "cgroup.events").read_text():
                return True
            if controllers == "freezer" and "FROZEN" in (CGROUPS / "freezer" / path / "freezer.state").read_text():
                return True
    return False


def cgroups_of(pid: int) -> list[tuple[str, str]]:
    """Return the cgroups of a process: their controllers, none for version 2, and their paths without a slash."""
    with suppress(OSError):
        lines = read_lines(_PROC / str(pid) / "cgroup")
        return [(controllers, path.lstrip("/")) for _, controllers, path in (line.split(":", 2) for line in lines)]
    return []
