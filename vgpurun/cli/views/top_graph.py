"""The graphs of `vgpurun top`: what each line has used since the screen was opened."""

from collections import deque
from collections.abc import Sequence

from vgpurun.cli.views.top import Row

_KEPT = 400  # refreshes; more than a screen has columns
_EIGHTHS, _ASCII = " ▁▂▃▄▅▆▇█", " .:#"


class History:
    """Parts of the memory and of the time that each row had used at each refresh, 0 to 1; None is unknown."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], deque[tuple[float | None, float | None]]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Note one refresh. Anything that is not there any more is forgotten."""
        now = {row.key: row for row in rows}
        self._kept = {key: self._kept.get(key, deque(maxlen=_KEPT)) for key in now}
        for key, row in now.items():
            memory = None if row.memory_used is None else row.memory_used / row.memory_of
            self._kept[key].append((memory, None if row.share_used is None else row.share_used / 100))

    def memory(self, row: Row) -> list[float | None]:
        """Return the parts of its limit, or of the GPU."""
        return [memory for memory, _ in self._kept.get(row.key, ())]

    def compute(self, row: Row) -> list[float | None]:
        """Return the parts of the GPU's time."""
        return [share for _, share in self._kept.get(row.key, ())]


def graph(values: Sequence[float | None], width: int, height: int, ascii_only: bool = False) -> list[str]:
    """Return the lines of a graph whose last column is the last value, and whose top is 1."""
    steps = _ASCII if ascii_only else _EIGHTHS
    most = len(steps) - 1
    columns = [None] * (width - len(values)) + list(values[-width:])
    filled = [0 if not value else max(1, round(min(value, 1.0) * height * most)) for value in columns]
    return [
        "".join(steps[min(most, max(0, cells - line * most))] for cells in filled) for line in reversed(range(height))
    ]
