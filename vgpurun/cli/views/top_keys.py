"""The effect of keys on the screen of `vgpurun top`: what is shown, which row is chosen, what is to be done to it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vgpurun.cli.views.top import Row

FOOT = "q quit  ? help  / filter  enter details  p pause  u limits  l logs  x stop"
HELP = """\
up, down, k, j     choose a line
page up, down      choose one further away
enter              all about that line, and back
/                  show only lines with a text; with none, all
m, c, g            sort by memory, compute, GPU
+, -               refresh more often, or less
p                  pause or unpause a container's GPU work
u                  change its limits, as vgpurun update does: --mem 4g --sm 30
l                  the end of what it has written
x                  stop it
q                  leave: this page, or the screen

p, u and x ask first. They are vgpurun's verbs, and say the same: a container
of another user is left alone, and more than there is room for is refused."""

_INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_LETTERS = {"k": "up", "j": "down", " ": "page down"}
_SORTS = {"m": "memory", "c": "compute", "g": "gpu"}
_MOST_TYPED = 200


class Action(NamedTuple):
    """A verb with its arguments, to be run by this program. Text that it prints is shown if `shows_output`."""

    arguments: tuple[str, ...]
    shows_output: bool = False


@dataclass
class Keys:
    """The screen as keys have made it. `mode` is list, details, help, text (what an action printed), or a question:
    filter and limits take a line of text, and ask an answer.
    """

    sort: str
    interval_s: float
    mode: str = "list"
    wanted: str = ""
    typed: str = ""
    message: str = ""
    chosen: tuple[str, str] = ("", "")
    _asked: Action | None = field(default=None, repr=False)
    _question: str = ""

    @property
    def prompt(self) -> str:
        """Return the question in the last line, or nothing."""
        prompts: Mapping[str, str] = {
            "filter": f"lines with: {self.typed}_",
            "limits": f"{self._question}{self.typed}_",
            "ask": self._question,
        }
        return prompts.get(self.mode, "")

    def row(self, rows: Sequence[Row]) -> Row | None:
        """Return the chosen row: the first one where the chosen one is gone."""
        return next((each for each in rows if each.key == self.chosen), rows[0] if rows else None)

    def press(self, key: str, rows: Sequence[Row], page: int) -> Action | None:
        """Obey a key; return what is to be done, where it is to be done now."""
        if self.mode in ("filter", "limits"):
            return self._type(key, rows)
        if self.mode == "ask":
            self.mode, asked = "list", self._asked
            return asked if key in ("y", "Y") else None
        self.message = ""
        if self.mode in ("help", "text") or (self.mode == "details" and key in ("enter", "escape", "q")):
            self.mode = "list"
            return None
        if key in ("p", "u", "l", "x"):
            return self._act(key, rows)
        self._look(key, rows, page)
        return None

    def _look(self, key: str, rows: Sequence[Row], page: int) -> None:
        key = _LETTERS.get(key, key)
        self.sort = _SORTS.get(key, self.sort)
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key in steps and rows:
            current = self.row(rows)
            number = rows.index(current) if current else 0
            self.chosen = rows[max(0, min(len(rows) - 1, number + steps[key]))].key
        elif key == "+":
            self.interval_s = max((each for each in _INTERVALS_S if each < self.interval_s), default=_INTERVALS_S[0])
        elif key == "-":
            self.interval_s = min((each for each in _INTERVALS_S if each > self.interval_s), default=_INTERVALS_S[-1])
        elif key == "/":
            self.mode, self.typed = "filter", self.wanted
        elif key == "escape":
            self.wanted = ""
        elif key in ("?", "h"):
            self.mode = "help"
        elif key == "enter" and rows:
            self.mode = "details"

    def _type(self, key: str, rows: Sequence[Row]) -> Action | None:
        """Take a letter of a line, or its end."""
        if key == "escape":
            self.mode = "list"
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "enter":
            mode, self.mode = self.mode, "list"
            if mode == "limits":
                return self._limits(rows)
            self.wanted = self.typed.strip()
        elif len(key) == 1 and key.isprintable() and len(self.typed) < _MOST_TYPED:
            self.typed += key
        return None

    def _act(self, key: str, rows: Sequence[Row]) -> Action | None:
        row = self.row(rows)
        tenant = row.tenant if row else None
        is_slice = tenant is not None and tenant.kind == "slice" and key == "u"
        if row is None or tenant is None or (tenant.container is None and not is_slice):
            self.message = "choose a container first" if key != "u" else "choose a container or a slice first"
            return None
        name = tenant.name
        if key == "l":
            return Action(("logs", "--tail", "200", name), shows_output=True)
        if key == "u":
            self.mode, self.typed, self._question = "limits", "", f"limits of {name}: "
            return None
        if key == "x":
            self._ask(f"stop container {name}? y/n", Action(("stop", name)))
        elif row.device is not None and row.device.quota.paused:
            self._ask(f"unpause the GPU work of {name}? y/n", Action(("unpause", "--gpu", name)))
        else:
            self._ask(f"pause the GPU work of {name}? y/n", Action(("pause", "--gpu", name)))
        return None

    def _ask(self, question: str, action: Action) -> None:
        self.mode, self._question, self._asked = "ask", question, action

    def _limits(self, rows: Sequence[Row]) -> Action | None:
        """Ask whether the limits that were typed are meant."""
        row = self.row(rows)
        if row is None or row.tenant is None or not self.typed.strip():
            return None
        try:
            words = shlex.split(self.typed)
        except ValueError as error:
            self.message = f"'{self.typed}': {error}"
            return None
        tenant = row.tenant
        verb, name = (("slice", "update"), tenant.folder.name) if tenant.kind == "slice" else (("update",), tenant.name)
        self._ask(f"{' '.join(verb)} {shlex.join(words)} {name}? y/n", Action((*verb, *words, name)))
        return None
