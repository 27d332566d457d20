"""The screen of `vgpurun top`: refreshes again and again, draws, and runs the verbs that keys ask for."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from vgpurun.admission.capacity import GpuCapacity, capacities
from vgpurun.cli.views import top as top_view
from vgpurun.cli.views.top import Drawing, Row
from vgpurun.cli.views.top_details import details, graphs
from vgpurun.cli.views.top_graph import History
from vgpurun.cli.views.top_keys import FOOT, HELP, Action, Keys
from vgpurun.console.keyboard import keys, next_key
from vgpurun.console.messages import warn
from vgpurun.console.signals import Signals
from vgpurun.engine.client import Engine
from vgpurun.errors import EngineError, VgpurunError
from vgpurun.host.gpus import Survey
from vgpurun.inventory import usage
from vgpurun.inventory.reservations import all_holders
from vgpurun.inventory.usage import Report
from vgpurun.util import own_module
from vgpurun.util.printable import printable

_PIPE_WIDTH = 100  # columns, where there is no terminal to ask
_AROUND = 3  # lines of the screen besides the list
_MOST_GRAPH = 10  # lines
_ACTION_INTERVAL_S = 0.2  # between two checks whether an action has ended
_READ_BYTES = 1 << 20  # read from an action's output


class Watch:
    """Looks at the GPUs that `find` finds again and again. Sorted by one of top_view.SORTS; `driver` is host or sim."""

    def __init__(self, find: Callable[[], Survey], sort: str, interval_s: float, driver: str) -> None:
        self._find = find
        self._driver = driver
        self._keys = Keys(sort, interval_s)
        self._first = 0  # the first line of the list on the screen
        self._engine: Engine | None = None
        self._trouble = ""
        self._free: Mapping[str, GpuCapacity] = {}
        self._history = History()
        self._running: tuple[Action, subprocess.Popen[bytes], IO[bytes]] | None = None
        self._text: list[str] = []  # an action's output

    def print_once(self) -> None:
        """Print what there is to see now."""
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        rows = self._rows(self._read())
        if self._trouble:
            warn(self._trouble)
        draw = Drawing(console.width, console.options.ascii_only, rows)
        for line in (draw.titles(), *map(draw.line, rows)):
            line.rstrip()
            console.print(line, soft_wrap=True)

    def run(self, signals: Signals) -> None:
        """Fill the screen until q, Ctrl-C or another ending signal; the terminal is then as it was."""
        console = Console(highlight=False, markup=False)
        screen = Live(console=console, screen=True, auto_refresh=False)
        with (
            signals.held(),
            keys(),
            screen as live,
        ):  # a signal amid rich's write would end all its writing
            is_due = True
            while True:
                if is_due:
                    with signals.let_through():
                        report, refreshed_at_s = self._refresh(), time.monotonic()
                rows = self._rows(report)
                live.update(self._screen(rows, console), refresh=True)
                left_s = max(0.0, refreshed_at_s + self._keys.interval_s - time.monotonic())
                with signals.let_through():
                    key = next_key(min(left_s, _ACTION_INTERVAL_S) if self._running else left_s)
                if key == "end" or (key == "q" and self._keys.mode == "list"):
                    return
                if key and (action := self._keys.press(key, rows, max(1, console.height - _AROUND))):
                    self._begin(action)
                is_due = self._end_action() or time.monotonic() - refreshed_at_s >= self._keys.interval_s

    def _refresh(self) -> Report:
        report = self._read()
        self._history.add(top_view.rows(report, "gpu"))
        return report

    def _rows(self, report: Report) -> list[Row]:
        return top_view.rows(report, self._keys.sort, self._keys.wanted, self._free)

    def _read(self) -> Report:
        found = self._find()
        troubles = [str(each) for each in found.lost]
        try:
            self._engine = self._engine or Engine.connect()
            report = usage.collect(found.gpus, self._engine)
        except EngineError as error:
            self._engine = None
            troubles.append(f"containers are not shown: {error}")
            report = usage.collect(found.gpus, None)
        self._free = {}
        with suppress(VgpurunError):  # then it is not said what is free
            shared = capacities(found.gpus, [use for _, use in report.gpus], all_holders(self._engine))
            self._free = {each.gpu.uuid: each for each in shared}
        self._trouble = ", ".join(troubles)
        return report

    def _begin(self, action: Action) -> None:
        """Run a verb of this program beside the screen; one at a time."""
        if self._running:
            self._keys.message = "wait for the other one to end"
            return
        output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by _end_action
        process = subprocess.Popen(
            own_module.command("vgpurun", *action.arguments),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=os.environ | {"VGPURUN_DRIVER": self._driver},
        )  # fmt: skip
        self._running = action, process, output
        self._keys.message = f"vgpurun {' '.join(action.arguments)} ..."

    def _end_action(self) -> bool:
        """Take what an action has printed, once it has ended."""
        if not self._running or self._running[1].poll() is None:
            return False
        action, process, output = self._running
        self._running = None
        with output:
            size = output.seek(0, 2)
            output.seek(max(0, size - _READ_BYTES))
            text = output.read().decode(errors="replace")
        self._text = [printable(line.expandtabs()) for line in text.splitlines()]
        last = self._text[-1] if self._text else ""
        if action.shows_output and process.returncode == 0:
            self._keys.mode, self._keys.message = "text", ""
            self._text = self._text or ["(nothing)"]
        else:
            done = f"vgpurun {' '.join(action.arguments)}: done"
            self._keys.message = last.removeprefix("vgpurun: ") if process.returncode else done
        return True

    def _screen(self, rows: list[Row], console: Console) -> Group:
        width, room, ascii_only = console.width, max(1, console.height - _AROUND), console.options.ascii_only
        row, is_list = self._keys.row(rows), False
        draw = Drawing(width, ascii_only, rows)
        titles = draw.titles()
        if self._keys.mode == "help":
            shown = [Text(line) for line in HELP.splitlines()]
        elif self._keys.mode == "text":
            shown = [Text(line) for line in self._text[-room:]]
        elif self._keys.mode == "details" and row:
            lines = [Text(line) for line in details(row)]
            height = min(_MOST_GRAPH, room - len(lines))
            shown = [*lines, *graphs(row, self._history, width, height, self._keys.interval_s, ascii_only)]
        else:
            is_list = True
            shown = self._list(rows, row, draw, room)
            if row:
                height = min(_MOST_GRAPH, room - len(shown))
                shown += graphs(row, self._history, width, height, self._keys.interval_s, ascii_only)
        shown = shown[:room] + [Text() for _ in range(room - len(shown))]
        foot = Text(self._keys.prompt or self._keys.message or FOOT, style="" if self._keys.prompt else "dim")
        texts = [self._head(rows, room), titles if is_list else Text(), *shown, foot]
        for text in texts:
            text.truncate(width)
            text.no_wrap = True
        return Group(*texts)

    def _list(self, rows: list[Row], chosen: Row | None, draw: Drawing, room: int) -> list[Text]:
        """Return the lines around the chosen one."""
        number = rows.index(chosen) if chosen else 0
        self._first = max(0, min(max(self._first, number - room + 1), number, max(0, len(rows) - room)))
        return [draw.line(row, row is chosen) for row in rows[self._first : self._first + room]]

    def _head(self, rows: list[Row], room: int) -> Text:
        if self._trouble:
            return Text(self._trouble, style="red")
        last = min(len(rows), self._first + room)
        place = f"   lines {self._first + 1}-{last} of {len(rows)}" if len(rows) > room else ""
        wanted = f"   with '{self._keys.wanted}'" if self._keys.wanted else ""
        every = f"every {self._keys.interval_s:g} s, by {self._keys.sort}"
        return Text(f"vgpurun top   {time.strftime('%H:%M:%S')}   {every}{wanted}{place}", style="dim")
