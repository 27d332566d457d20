"""Counts what turns have cost each that takes some: a file in its state folder, which outlives the guard."""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.storage.shared_file import read_regular
from vgpurun.util.atomic_file import atomic_file

_NAME = "swaps"
_MOST_BYTES = 1 << 10


class SwapCounts(NamedTuple):
    """How often its memory went out or came back, how many bytes that were, and for how long it waited for turns."""

    swaps: int = 0
    swapped_bytes: int = 0
    waited_s: float = 0.0


def read_swaps(folder: Path) -> SwapCounts:
    """Return the counts of a state folder, all 0 where there are none. Raises nothing: the folder may be a user's."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
        given = json.loads(read_regular(folder / _NAME, _MOST_BYTES) or b"")
        counts = SwapCounts(int(given["swaps"]), int(given["swapped_bytes"]), float(given["waited_s"]))
        if all(0 <= each < 2**63 for each in counts):
            return counts
    return SwapCounts()


def add_swap(folder: Path, moved_bytes: int, waited_s: float = 0.0) -> None:
    """Count a way in or out. Raises nothing: that it was counted is worth less than the turn of another."""
    before = read_swaps(folder)
    after = SwapCounts(before.swaps + 1, before.swapped_bytes + moved_bytes, before.waited_s + waited_s)
    with suppress(OSError), atomic_file(folder / _NAME) as half_made:
        half_made.write_text(json.dumps(after._asdict()))
