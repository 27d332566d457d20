"""The cgroup of a container: which one that is, and how all processes in it are frozen, thawed or ended at once.

On cgroup v2 the kernel does it by cgroup.freeze and cgroup.kill. On v1 it is the freezer controller, and what is to be
ended is frozen first, so that it starts nothing meanwhile. A frozen process of v1 takes no signal before it is thawed.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun.errors import CgroupError
from vgpurun.util.kernel_text import read_lines, read_text
from vgpurun.util.process_identity import ProcessIdentity

CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_UNIFIED = ""  # the controller of v2's line in /proc/PID/cgroup
_FREEZER = "freezer"
_PATIENCE_S = 0.25  # for processes in the kernel, which freeze when they leave it; a hostile one may stay long
_POLL_INTERVAL_S = 0.002
_OPEN_AT_ONCE = 256  # files, of the 1024 that a process mostly may have


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of one hierarchy, by its folder."""

    folder: Path
    is_unified: bool

    def freeze(self) -> None:
        """Stop all processes in it, and those to come; return when they stand, or soon after. Raises CgroupError."""
        self._write(*(("cgroup.freeze", "1") if self.is_unified else ("freezer.state", "FROZEN")))
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self._has_settled() and time.monotonic() < deadline_s:
            time.sleep(_POLL_INTERVAL_S)

    def thaw(self) -> None:
        """Let all processes go on; nothing happens to those that run. Raises CgroupError."""
        self._write(*(("cgroup.freeze", "0") if self.is_unified else ("freezer.state", "THAWED")))

    def is_frozen(self) -> bool:
        """Whether it is to be frozen, by its own state and not by a parent's. Raises CgroupError."""
        return self._read("cgroup.freeze" if self.is_unified else "freezer.self_freezing") == "1"

    def kill(self) -> None:
        """End all processes in it and below it. Raises CgroupError."""
        if self.is_unified and (self.folder / "cgroup.kill").exists():  # Linux 5.14
            self._write("cgroup.kill", "1")
            return
        self.freeze()
        try:
            there = self.pids()
            for first in range(0, len(there), _OPEN_AT_ONCE):
                self._kill_each(there[first : first + _OPEN_AT_ONCE])
        finally:
            self.thaw()

    def _kill_each(self, pids: Sequence[int]) -> None:
        """End those that are in here after a pidfd of each was opened, too: it is not another's that has its number."""
        with ExitStack() as opened:
            files = {}
            for pid in pids:
                with suppress(OSError):
                    files[pid] = os.pidfd_open(pid)
                    opened.callback(os.close, files[pid])
            for pid in files.keys() & set(self.pids()):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(files[pid], signal.SIGKILL)

    def pids(self) -> list[int]:
        """Return the processes in it and below it, by the numbers of this PID namespace."""
        found = []
        for place, _, _ in os.walk(self.folder):
            with suppress(OSError, ValueError):
                found += [int(line) for line in Path(place, "cgroup.procs").read_text().split() if line != "0"]
        return found

    def remove_if_empty(self) -> bool:
        """Remove it if nothing is in it, as its engine gives up doing while processes end; return whether it was.

        It is still frozen, and a container that is started again would begin in it.
        """
        with suppress(OSError):
            self.folder.rmdir()
            return True
        return False

    def move_out(self, pid: int) -> None:
        """Move a process into the cgroup around this one; nothing happens if it has ended. Raises CgroupError."""
        try:
            (self.folder.parent / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return
        except OSError as error:
            raise CgroupError(f"process {pid} cannot be moved out of {self.folder}: {error.strerror}") from None

    def can_be_frozen(self) -> bool:
        """Whether it can: the first one of a hierarchy cannot."""
        return (self.folder / ("cgroup.freeze" if self.is_unified else "freezer.state")).exists()

    def take_in(self, process: ProcessIdentity) -> None:
        """Move this very process into it; nothing happens if it has ended. Raises CgroupError.

        The kernel takes its number. Where it ended meanwhile, and another process has that, that one is moved out.
        """
        with suppress(ProcessLookupError):
            try:
                with process.opened() as file:
                    if file is None:
                        return
                    (self.folder / "cgroup.procs").write_text(str(process.pid))
                    if not _is_there(file) and process.pid in self.pids():
                        self.move_out(process.pid)
            except ProcessLookupError:
                raise
            except OSError as error:
                raise CgroupError(
                    f"process {process.pid} cannot be moved into {self.folder}: {error.strerror}"
                ) from None

    def _has_settled(self) -> bool:
        if self.is_unified:
            return "frozen 1" in self._read("cgroup.events")
        return self._read("freezer.state") == "FROZEN"

    def _read(self, name: str) -> str:
        try:
            return read_text(f"{self.folder}/{name}").strip()
        except OSError as error:
            raise CgroupError(f"{self.folder / name} cannot be read: {error.strerror}") from None

    def _write(self, name: str, content: str) -> None:
        try:
            (self.folder / name).write_text(content)
        except OSError as error:
            raise CgroupError(f"{self.folder / name} cannot be written: {error.strerror}") from None


def _is_there(file: int) -> bool:
    """Whether the process of a pidfd is there still, be it as a zombie: then no other one has its number."""
    try:
        signal.pidfd_send_signal(file, 0)
    except ProcessLookupError:
        return False
    return True


def paths_of(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """Return the cgroup of a process in each hierarchy, by controller; that of v2 has no name. Raises OSError."""
    found = {}
    for line in read_lines(proc / str(pid) / "cgroup"):
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def container_ids(paths: dict[str, str]) -> set[str]:
    """Return the ids of containers that are anywhere in these paths."""
    return {each for path in paths.values() for each in CONTAINER_ID.findall(path)}


def find(pid: int, container: str, proc: Path = Path("/proc")) -> Cgroup | None:
    """Return the cgroup of a container by one of its processes, or None where it has none that can be frozen."""
    found = _cgroups_of(pid, lambda path: _path_of(container, path), proc)
    return next((each for each in found if each.can_be_frozen()), None)


def of_process(pid: int) -> Cgroup | None:
    """Return the cgroup that a process is in, by which it could be frozen."""
    return next(_cgroups_of(pid, lambda path: path), None)


def made_below(pid: int, name: str) -> Cgroup:
    """Return the cgroup of a name below a process's own, or that own one; it may be new. Raises CgroupError."""
    for around in _cgroups_of(pid, lambda path: path):
        if around.folder.name == name:
            return around
        made = Cgroup(around.folder / name, around.is_unified)
        with suppress(OSError):
            made.folder.mkdir(exist_ok=True)
            if made.can_be_frozen():
                return made
            made.folder.rmdir()
    raise CgroupError(f"no cgroup can be made for process {pid}")


def remove_empty(beginning: str) -> None:
    """Remove all cgroups of this host whose names begin so, and in which nothing is. Raises nothing."""
    with suppress(OSError):
        for root, _ in {*_mounts(Path("/proc")).values()}:
            for place, names, _ in os.walk(root):
                for name in names:
                    if name.startswith(beginning):
                        with suppress(OSError):  # something is in it
                            Path(place, name).rmdir()


def _cgroups_of(pid: int, path_in: Callable[[str], str | None], proc: Path = Path("/proc")) -> Iterator[Cgroup]:
    """Yield the cgroups of a process that may be frozen, or be around such, as far as `path_in` says of their paths."""
    try:
        paths, mounts = paths_of(pid, proc), _mounts(proc)
    except OSError:
        return
    for controller in (_FREEZER, _UNIFIED):
        root, mounted_path = mounts.get(controller, (None, ""))
        path = path_in(paths[controller]) if controller in paths else None
        if root is not None and path is not None:
            yield Cgroup(root / os.path.relpath(path, mounted_path), controller == _UNIFIED)


def _path_of(container: str, path: str) -> str | None:
    """Return the path up to the folder that is the container's: below it may be cgroups of its own."""
    parts = path.split("/")
    numbers = [number for number, part in enumerate(parts) if container in part]
    return "/".join(parts[: numbers[0] + 1]) if numbers else None


def _mounts(proc: Path) -> dict[str, tuple[Path, str]]:
    """Return where v1's freezer and v2 are mounted, and which of their cgroups that is."""
    found: dict[str, tuple[Path, str]] = {}
    for line in read_lines(proc / "self" / "mountinfo"):
        before, _, after = line.partition(" - ")
        root, place = before.split(" ")[3:5]
        kind, _, options = after.split(" ")[:3]  # the second may be empty
        if kind == "cgroup2":
            found.setdefault(_UNIFIED, (Path(place), root))
        elif kind == "cgroup" and _FREEZER in options.split(","):
            found.setdefault(_FREEZER, (Path(place), root))
    return found


def run_of(cgroup: Cgroup) -> str:
    """Return what tells one start of a container from the next: the kernel numbers each cgroup anew."""
    try:
        return str(os.stat(cgroup.folder).st_ino)  # noqa: PTH116
    except OSError:
        return ""
