"""Finds the numbers of a process's clients of the driver in its memory: only the process has been told them."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vgpurun.util.kernel_text import read_lines

_PIECE_BYTES, _MOST_BYTES = 1 << 20, 1 << 28  # memory that is searched


def client_numbers(pid: int, first: int, last: int) -> Iterator[int]:
    """Yield numbers in a process's memory that may be these clients, each once; libcuda's own first.

    Raises:
        OSError: the process has ended, or we are not root.
    """
    seen: set[int] = set()
    lowest, highest = (bytes([each >> 16 & 0xFF]) for each in (first, last))  # 0xd0 to 0xdf
    # A single one is found ten times as fast, and there is one until 65536 clients have been made.
    upper_half = re.compile((lowest if lowest == highest else b"[%b-%b]" % (lowest, highest)) + b"\xc1")
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        left_bytes = _MOST_BYTES
        for start, end in _writable(pid):
            for place in range(start, min(end, start + left_bytes), _PIECE_BYTES):
                with suppress(OSError, ValueError):
                    piece = os.pread(memory.fileno(), min(_PIECE_BYTES, end - place), place)
                    for number in _clients(piece, upper_half):
                        if first <= number <= last and number not in seen:
                            seen.add(number)
                            yield number
            left_bytes -= min(end - start, left_bytes)


def _clients(piece: bytes, upper_half: re.Pattern[bytes]) -> Iterator[int]:
    """Yield what may be clients' numbers, by their upper half."""
    for match in upper_half.finditer(piece):
        first = match.start() - 2
        if first >= 0 and first % 4 == 0 and not _is_pointer(piece[first : first + 8], first):
            yield int.from_bytes(piece[first : first + 4], "little")


def _is_pointer(words: bytes, place: int) -> bool:
    """Whether it is rather the lower half of one, which the kernel has put there by chance."""
    return place % 8 == 0 and 0x5000 <= int.from_bytes(words[4:], "little") < 0x8000


def _writable(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the places of a process's own memory: libcuda's variables, then the heap, then others, small ones first.

    Raises OSError.
    """
    places, previous = [], ""
    for line in filter(None, read_lines(Path(f"/proc/{pid}/maps"))):  # there is none while it becomes another program
        addresses, mode, _, _, _, *rest = line.split(None, 5)
        start, end = (int(each, 16) for each in addresses.split("-"))
        name = Path(rest[0]).name if rest else previous  # a library's variables go on where its file has ended
        if mode.startswith("rw") and mode.endswith("p"):
            is_other = 0 if name.startswith("libcuda.so") else 1 if name == "[heap]" else 2
            places.append((is_other, end - start, start, end))
        previous = name
    yield from ((start, end) for *_, start, end in sorted(places))
