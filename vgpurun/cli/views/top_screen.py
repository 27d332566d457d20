"""The screen of `vgpurun top`, and what keys make of it."""

import sys
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from vgpurun.cli.views import top as top_view
from vgpurun.console.keyboard import keys, next_key
from vgpurun.console.messages import warn
from vgpurun.console.signals import Signals
from vgpurun.engine.client import Engine
from vgpurun.errors import EngineError
from vgpurun.host.gpus import Survey
from vgpurun.inventory import usage as smi
from vgpurun.inventory.usage import Report

_INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_PIPE_WIDTH = 100  # columns, where there is no terminal to ask
_AROUND = 3  # lines of the screen besides the list


class Watch:
    """Looks at the GPUs that `find` finds again and again. Sorted by one of top_view.SORTS."""

    def __init__(self, find: Callable[[], Survey], sort: str, interval_s: float) -> None:
        self._find = find
        self._sort = sort
        self._interval_s = interval_s
        self._first = 0  # of the list's lines on the screen
        self._engine: Engine | None = None
        self._trouble = ""

    def print_once(self) -> None:
        """Print what there is to see now."""
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        report = self._read()
        if self._trouble:
            warn(self._trouble)
        for line in top_view.lines(report, console.width, self._sort, console.options.ascii_only):
            line.rstrip()
            console.print(line, soft_wrap=True)

    def run(self) -> None:
        """Fill the screen until q, Ctrl-C or another ending signal; the terminal is then as it was."""
        console = Console(highlight=False, markup=False)
        key: str | None = ""
        with Signals(), keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            report, looked_at_s = self._read(), time.monotonic()
            while key != "q":
                live.update(self._screen(report, console), refresh=True)
                key = next_key(max(0.0, looked_at_s + self._interval_s - time.monotonic()))
                self._obey(key, console.height)
                if time.monotonic() - looked_at_s >= self._interval_s:
                    report, looked_at_s = self._read(), time.monotonic()

    def _read(self) -> Report:
        found = self._find()
        troubles = [str(each) for each in found.lost]
        try:
            self._engine = self._engine or Engine.connect()
            return smi.collect(found.gpus, self._engine)
        except EngineError as error:
            self._engine = None
            troubles.append(f"containers are not shown: {error}")
            return smi.collect(found.gpus, None)
        finally:
            self._trouble = ", ".join(troubles)

    def _screen(self, report: Report, console: Console) -> Group:
        titles, *rows = top_view.lines(report, console.width, self._sort, console.options.ascii_only)
        room = max(1, console.height - _AROUND)
        self._first = max(0, min(self._first, len(rows) - room))
        shown = rows[self._first : self._first + room]
        place = f"   lines {self._first + 1}-{self._first + len(shown)} of {len(rows)}" if len(rows) > room else ""
        head = f"vgpurun top   {time.strftime('%H:%M:%S')}   every {self._interval_s:g} s, by {self._sort}{place}"
        texts = [Text(self._trouble or head, style="red" if self._trouble else "dim"), titles, *shown]
        texts += [Text() for _ in range(room - len(shown))]
        texts.append(Text(top_view.KEYS, style="dim"))
        for text in texts:
            text.truncate(console.width)
        return Group(*texts)

    def _obey(self, key: str | None, height: int) -> None:
        page = max(1, height - _AROUND)
        self._first += {"up": -1, "down": 1, "page up": -page, "page down": page}.get(key or "", 0)
        self._sort = {"m": "memory", "c": "compute", "g": "gpu"}.get(key or "", self._sort)
        if key == "+":
            self._interval_s = max((each for each in _INTERVALS_S if each < self._interval_s), default=_INTERVALS_S[0])
        if key == "-":
            self._interval_s = min((each for each in _INTERVALS_S if each > self._interval_s), default=_INTERVALS_S[-1])
