"""The record of a suspension, written before each step so that a later command can finish it.

The file is in the state folder, which the container does not see; that may be a user's own.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.storage.shared_file import read_regular
from vgpurun.util.nofollow import opened_folder, replace_nofollow
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import ProcessIdentity, boot_id

FILE = "suspension"
_MOST_BYTES = 1 << 20


class Phase(Enum):
    """How far it is. Found by somebody who did not do it, the first and the last were interrupted."""

    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    MOVING = "moving"  # all are away, and come back on other GPUs
    RETURNING = "returning"  # to those that they had, for one of them could not be brought to the others


class Record(NamedTuple):
    """A suspension. `held_bytes` is what the processes had on each GPU, by UUID, and need there to come back.

    `is_held`: only a command brings it back, and no call of its programs. `by`: what suspended it, for people.
    `since_s` is in seconds since 1970, `since_ns` by CLOCK_MONOTONIC of the boot `boot_id`: only a call after that asks
    for the GPUs.
    `is_swapped`: it comes back at its turn, and what it has reserved stays its own, together with others' in theirs.
    `onto`: of a move, the GPU that takes the place of each, by UUID. `moved`: of a return, those that were there.
    """

    phase: Phase
    processes: tuple[ProcessIdentity, ...] = ()
    held_bytes: Mapping[str, int] = {}
    is_held: bool = False
    by: str = ""
    since_s: float = 0.0
    since_ns: int = 0
    is_swapped: bool = False
    onto: Mapping[str, str] = {}
    moved: tuple[ProcessIdentity, ...] = ()
    boot_id: str = ""

    @property
    def since_now_ns(self) -> int:
        """The same by this boot's clock: a suspension of a boot before was before all that it has."""
        return self.since_ns if self.boot_id == boot_id() else 0

    def begun_now(self) -> "Record":
        """Return one that begins now."""
        return self._replace(since_s=time.time(), since_ns=time.monotonic_ns(), boot_id=boot_id())

    @property
    def total_bytes(self) -> int:
        """The memory of all GPUs that lies in the host's meanwhile."""
        return sum(self.held_bytes.values())


def read(folder: Path) -> Record | None:
    """Return the suspension of a state folder, or None where there is none. Raises OSError where it may not be read."""
    try:
        given = json.loads(read_regular(folder / FILE, _MOST_BYTES) or b"")
        return Record(
            Phase(given["phase"]),
            _processes(given["processes"]),
            {str(uuid): int(held) for uuid, held in given["held_bytes"].items()},
            bool(given["is_held"]),
            printable(str(given["by"])),
            float(given["since_s"]),
            int(given["since_ns"]),
            given.get("is_swapped") is True,
            {str(old): str(new) for old, new in given.get("onto", {}).items()},
            _processes(given.get("moved", ())),
            str(given.get("boot_id", "")),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _processes(given: Iterable[Sequence[Any]]) -> tuple[ProcessIdentity, ...]:
    """Read recorded processes. Records of earlier versions have no boot id: they were made in this boot."""
    return tuple(
        ProcessIdentity(int(pid), int(started_ticks), str(*boot) if boot else boot_id())
        for pid, started_ticks, *boot in given
    )


def write(folder: Path, record: Record) -> None:
    """Write down a suspension, on the disk, before anything of it is done. Raises OSError."""
    content = json.dumps({**record._asdict(), "phase": record.phase.value})
    replace_nofollow(folder / FILE, content.encode())


def forget(folder: Path) -> None:
    """Write down that a suspension is over. Raises OSError."""
    with suppress(FileNotFoundError), opened_folder(folder) as place:
        os.unlink(FILE, dir_fd=place)
