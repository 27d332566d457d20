"""Text in columns, for lists that scripts read too: no frames, nothing cut but where a terminal is too narrow."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

_GAP, _NARROW_GAP = "  ", " "


@dataclass(frozen=True)
class Column:
    """A column: its title, the side that it is aligned to, whether its texts may be cut, and how wide they stay.

    Texts that may be cut go on in further lines instead where the column `wraps`.
    `leaves` is its place among those that are left out, one after the other, where there is no room for all.
    """

    title: str
    is_right: bool = False
    can_shrink: bool = False
    least_width: int = 8
    leaves: int = 0
    wraps: bool = False


def terminal_width() -> int | None:
    """Return the width of standard output, or None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the titles and rows.

    To fit a width, columns that can shrink do so, the last one first, then all gaps; where that is not enough, columns
    leave before.
    """
    widths = [max(len(column.title), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    if width:
        staying = _staying(columns, widths, width)
        columns, widths = [columns[i] for i in staying], [widths[i] for i in staying]
        rows = [[row[i] for i in staying] for row in rows]
    too_wide = sum(widths) + len(_GAP) * (len(widths) - 1) - width if width else 0
    for i in reversed([i for i, column in enumerate(columns) if column.can_shrink]):
        less = max(0, min(too_wide, widths[i] - columns[i].least_width))
        widths[i] -= less
        too_wide -= less
    titles = [column.title for column in columns]
    gap = _GAP if too_wide <= 0 else _NARROW_GAP
    if any(column.wraps for column in columns):
        rows = [part for row in rows for part in _wrapped(columns, row, widths)]
    return [_line(columns, row, widths, gap) for row in (titles, *rows)]


def _wrapped(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    from textwrap import wrap  # few lists have such a column

    parts = [
        wrap(text, width) if column.wraps else [text] for column, text, width in zip(columns, row, widths, strict=True)
    ]
    return zip_longest(*parts, fillvalue="")


def _staying(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return the places of the columns that stay."""
    least = [
        min(full, column.least_width) if column.can_shrink else full
        for column, full in zip(columns, widths, strict=True)
    ]
    staying = list(range(len(columns)))
    for leaving in sorted((i for i in staying if columns[i].leaves), key=lambda i: columns[i].leaves):
        if sum(least[i] + len(_NARROW_GAP) for i in staying) - len(_NARROW_GAP) <= width:
            break
        staying.remove(leaving)
    return staying


def cut(text: str, width: int) -> str:
    """Return a text that is no wider."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], gap: str) -> str:
    cells = []
    for column, text, width in zip(columns, row, widths, strict=True):
        shown = cut(text, width)
        cells.append(shown.rjust(width) if column.is_right else shown.ljust(width))
    return gap.join(cells).rstrip()
