"""Counts what turns (--swap) have cost each holder, in a file of its state folder, which outlives the guard."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vgpurun.storage.shared_file import read_regular
from vgpurun.util.nofollow import replace_nofollow
from vgpurun.util.printable import printable

_NAME = "swaps"
_MOST_BYTES = 1 << 12
_MOST_WORDS = 300  # characters


@dataclass(frozen=True)
class SwapCounts:
    """How often its memory went out or came back, how many bytes that were, and for how long it waited for turns.

    `held_up`: while it waits, why the one that has the turn does not go, for people; nothing where that goes in time.
    """

    swaps: int = 0
    swapped_bytes: int = 0
    waited_s: float = 0.0
    held_up: str = ""


def read_swaps(folder: Path) -> SwapCounts:
    """Return the counts of a state folder, all 0 where there are none. Raises nothing: the folder may be a user's."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
        given = json.loads(read_regular(folder / _NAME, _MOST_BYTES) or b"")
        counts = int(given["swaps"]), int(given["swapped_bytes"]), float(given["waited_s"])
        if all(0 <= each < 2**63 for each in counts):
            return SwapCounts(*counts, held_up=printable(str(given.get("held_up", ""))[:_MOST_WORDS]))
    return SwapCounts()


def add_swap(folder: Path, moved_bytes: int, waited_s: float = 0.0) -> None:
    """Count a way in or out. Raises nothing: that it was counted is worth less than the turn of another."""
    before = read_swaps(folder)
    _write(folder, SwapCounts(before.swaps + 1, before.swapped_bytes + moved_bytes, before.waited_s + waited_s))


def note_held_up(folder: Path, why: str) -> None:
    """Note why one waits for longer than its turn takes to come, or that it does not. Raises nothing."""
    before = read_swaps(folder)
    if before.held_up != why[:_MOST_WORDS]:
        _write(folder, replace(before, held_up=why[:_MOST_WORDS]))


def _write(folder: Path, counts: SwapCounts) -> None:
    with suppress(OSError):
        replace_nofollow(folder / _NAME, json.dumps(asdict(counts)).encode())
